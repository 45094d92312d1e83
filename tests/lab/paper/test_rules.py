"""Each rule against runs whose numbers decide it by hand."""

import numpy as np
import pytest
from tests.lab.paper.records import ALEXNET, HEADLINE, PRINTED, RESNET, record

from drcl.lab.paper.contents import paper
from drcl.lab.paper.rules import Evidence, Finding, judge, verdict_of
from drcl.lab.paper.studies import Study

PAPER = paper()
HEAD = PAPER.claims["over-ewc"].rules[0]


def evidence(runs, studies=None):
    return Evidence(PAPER, tuple(runs), studies or {})


def headline(folder, ours, theirs, transfer=-0.02):
    """Runs of DRCL as printed and of EWC with these accuracies on seeds 0, 1, ..."""
    made = [
        record(folder, "cifar100-10", "drcl", seed, accuracy, transfer, of_benchmark=HEADLINE, of_method=PRINTED)
        for seed, accuracy in enumerate(ours)
    ]
    return made + [
        record(folder, "cifar100-10", "ewc", seed, accuracy, of_benchmark=HEADLINE)
        for seed, accuracy in enumerate(theirs)
    ]


@pytest.mark.parametrize(
    ("ours", "theirs", "transfer", "verdict"),
    [
        ((0.60, 0.61, 0.62), (0.55, 0.55, 0.55), -0.02, "holds"),  # +6 in the mean, every seed ahead
        ((0.60, 0.60, 0.60), (0.55, 0.55, 0.55), -0.02, "holds"),  # +5 is enough
        ((0.60, 0.61, 0.62), (0.55, 0.55, 0.55), -0.05, "weaker"),  # forgets more than 4 points
        ((0.80, 0.61, 0.54), (0.55, 0.55, 0.55), -0.02, "weaker"),  # +10 in the mean, but not on the third seed
        ((0.58, 0.58, 0.58), (0.55, 0.55, 0.55), -0.02, "weaker"),  # +3
        ((0.56, 0.56, 0.56), (0.55, 0.55, 0.55), -0.02, "fails"),  # +1
        ((0.50, 0.50, 0.50), (0.55, 0.55, 0.55), -0.02, "fails"),
    ],
)
def test_the_headline(tmp_path, ours, theirs, transfer, verdict):
    finding = judge(HEAD, evidence(headline(tmp_path, ours, theirs, transfer)), "headline")
    assert finding.verdict == verdict
    assert finding.seeds == 3
    assert len(finding.runs) == 6


def test_the_headline_tells_its_numbers(tmp_path):
    finding = judge(HEAD, evidence(headline(tmp_path, (0.60, 0.61, 0.62), (0.55, 0.55, 0.55))), "headline")
    words = "Ours 61.0 ± 1.0 against EWC 55.0 ± 0.0, +6.0 in the mean, backward transfer −2.0"
    assert finding.words == words
    assert finding.scale == "alexnet at 0.5 width, 12 epochs"


@pytest.mark.parametrize(
    ("ours", "words"),
    [
        ((0.54, 0.58), "+1.0 in the mean, not ahead on every seed, backward transfer −2.0"),
        ((0.54, 0.52), "−2.0 in the mean, ahead on no seed, backward transfer −2.0"),
        ((0.54,), "−1.0, backward transfer −2.0"),
    ],
)
def test_the_headline_tells_on_how_many_seeds(tmp_path, ours, words):
    finding = judge(HEAD, evidence(headline(tmp_path, ours, (0.55, 0.55))), "headline")
    assert finding.words.endswith(", " + words)


def test_the_headline_needs_runs_of_both_sides_on_the_same_seed(tmp_path):
    runs = headline(tmp_path, (0.6,), (0.5,))
    assert judge(HEAD, evidence(runs[:1]), "headline") is None
    other = record(tmp_path, "cifar100-10", "ewc", 7, 0.5, of_benchmark=HEADLINE)
    assert judge(HEAD, evidence([runs[0], other]), "headline") is None


@pytest.mark.parametrize(("ewc", "alone", "together"), [(0.5, None, "holds"), (0.7, "fails", "fails")])
def test_being_ahead_of_all_needs_all_rivals_but_failing_needs_one(tmp_path, ewc, alone, together):
    rule = {**HEAD, "theirs": ["ewc", "sgd"], "all": True}
    runs = headline(tmp_path, (0.6,), (ewc,))
    found = judge(rule, evidence(runs), "headline")
    assert (found and found.verdict) == alone
    runs.append(record(tmp_path, "cifar100-10", "sgd", 0, 0.4, of_benchmark=HEADLINE))
    assert judge(rule, evidence(runs), "headline").verdict == together


def test_runs_under_other_conditions_do_not_count(tmp_path):
    short = headline(tmp_path, (0.6,), ())
    short.append(record(tmp_path, "cifar100-10", "ewc", 0, 0.5, of_benchmark=ALEXNET))
    assert judge(HEAD, evidence(short), "headline") is None


def test_each_side_comes_with_its_best(tmp_path):
    rule = {"kind": "ahead", "metric": "average_accuracy", "ours": ["drcl", "drcl-tuned"], "theirs": ["ewc", "sgp"]}
    runs = headline(tmp_path, (0.5,), (0.55,))
    tuned = {**PRINTED, "strength": 0.1}
    runs.append(record(tmp_path, "cifar100-10", "drcl", 0, 0.6, of_benchmark=HEADLINE, of_method=tuned))
    runs.append(record(tmp_path, "cifar100-10", "sgp", 0, 0.58, of_benchmark=HEADLINE))
    finding = judge({**rule, "margin": 1.0, "fail": 0.0}, evidence(runs), "headline")
    assert finding.words.startswith("DRCL, tuned lambda 60.0 against SGP 58.0, +2.0")
    assert finding.verdict == "holds"


def test_rows_that_share_fewer_seeds_do_not_count(tmp_path):
    """The tuned row is far ahead, but only on one of the two seeds."""
    rule = {"kind": "ahead", "metric": "average_accuracy", "ours": ["drcl", "drcl-tuned"], "theirs": ["ewc"]}
    runs = headline(tmp_path, (0.5, 0.5), (0.55, 0.55))
    tuned = {**PRINTED, "strength": 0.1}
    runs.append(record(tmp_path, "cifar100-10", "drcl", 0, 0.7, of_benchmark=HEADLINE, of_method=tuned))
    finding = judge({**rule, "margin": 1.0, "fail": 0.0}, evidence(runs), "headline")
    assert finding.words.startswith("Ours 50.0 ± 0.0 against EWC 55.0")
    assert finding.verdict == "fails"


def test_only_seeds_that_both_have_are_told(tmp_path):
    finding = judge(HEAD, evidence(headline(tmp_path, (0.60, 0.61, 0.20), (0.55, 0.55))), "headline")
    assert finding.words.startswith("Ours 60.5 ± 0.7 against EWC 55.0 ± 0.0, +5.5 in the mean")
    assert finding.seeds == 2


def test_less_may_be_better(tmp_path):
    rule = PAPER.claims["loss"].rules[0]
    ours = record(tmp_path, "cifar100-20", "drcl", of_benchmark=RESNET, of_method=PRINTED, curve=[(1, 0.5)])
    theirs = record(tmp_path, "cifar100-20", "ewc", of_benchmark=RESNET, curve=[(1, 0.8)])
    finding = judge(rule, evidence([ours, theirs]), "dense")
    assert finding.verdict == "holds"
    assert finding.words == "Ours 0.50 against EWC 0.80, +0.30"  # a loss is not a share
    worse = record(tmp_path, "cifar100-20", "spg", of_benchmark=RESNET, curve=[(1, 0.4)])
    assert judge(rule, evidence([ours, theirs, worse]), "dense").verdict == "fails"


@pytest.mark.parametrize(("share", "verdict"), [(0.84, "holds"), (0.7, "weaker"), (0.5, "fails")])
def test_bound(tmp_path, share, verdict):
    rule = PAPER.claims["stationary"].rules[0]
    run = record(tmp_path, "cifar100-20", "drcl", of_benchmark=RESNET, of_method=PRINTED, effective_stability=share)
    assert judge(rule, evidence([run]), "dense").verdict == verdict


@pytest.mark.parametrize(("iterations", "verdict"), [(6.0, "holds"), (7.5, "weaker"), (9.0, "fails")])
def test_bound_of_a_series(tmp_path, iterations, verdict):
    early = {**PRINTED, "iterations": 9, "tolerance": 0.01}
    told = {"iterations": [1.0, iterations]}  # the first task has nothing to negotiate
    run = record(tmp_path, "cub-20", "drcl", of_method=early, per_task=told)
    assert judge(PAPER.claims["early-stop"].rules[0], evidence([run]), "cost").verdict == verdict


@pytest.mark.parametrize(("seconds", "verdict"), [(11.0, "holds"), (15.0, "weaker"), (40.0, "fails")])
def test_ratio(tmp_path, seconds, verdict):
    cost = {"training": {"seconds": seconds}}
    ours = record(tmp_path, "cub-20", "drcl", of_method=PRINTED, cost=cost)
    theirs = record(tmp_path, "cub-20", "sgd")
    finding = judge(PAPER.claims["cost"].rules[0], evidence([ours, theirs]), "cost")
    assert finding.verdict == verdict
    assert finding.words == f"Ours {seconds / 10:.2f} times Baseline"
    assert judge(PAPER.claims["cost"].rules[0], evidence([ours]), "cost") is None


def lambdas(folder, values, key="transfer"):
    """Runs at rising lambda with these forgettings, or accuracies, in points."""
    runs = []
    for strength, points in zip((0.001, 0.1, 1.0, 10.0, 100.0), values):
        given = {"transfer": -points / 100} if key == "transfer" else {"accuracy": points / 100}
        method = {**PRINTED, "strength": strength}
        runs.append(record(folder, "cifar100-10", "drcl", of_benchmark=ALEXNET, of_method=method, **given))
    return runs


@pytest.mark.parametrize(
    ("forgetting", "verdict"),
    [((20, 15, 10, 5, 1), "holds"), ((20, 15, 18, 5, 1), "weaker"), ((5, 6, 7, 8, 9), "fails")],
)
def test_ordered(tmp_path, forgetting, verdict):
    rule = PAPER.claims["lambda-forgetting"].rules[0]
    assert judge(rule, evidence(lambdas(tmp_path, forgetting)), "abla-1").verdict == verdict
    assert judge(rule, evidence(lambdas(tmp_path / "few", forgetting[:2])), "abla-1") is None


@pytest.mark.parametrize(
    ("accuracy", "verdict"),
    [((50, 55, 58, 60, 40), "holds"), ((50, 55, 63, 60, 40), "weaker"), ((70, 55, 58, 60, 40), "fails")],
)
def test_best(tmp_path, accuracy, verdict):
    rule = PAPER.claims["lambda-10"].rules[0]
    runs = lambdas(tmp_path, accuracy, "accuracy")
    assert judge(rule, evidence(runs), "abla-1").verdict == verdict


def test_lambdas_are_compared_on_the_seeds_that_all_have(tmp_path):
    """A second seed of one lambda is harder; that says nothing about lambda."""
    runs = lambdas(tmp_path, (50, 55, 58, 60, 40), "accuracy")
    harder = record(tmp_path, "cifar100-10", "drcl", 1, 0.2, of_benchmark=ALEXNET, of_method=PRINTED)
    finding = judge(PAPER.claims["lambda-10"].rules[0], evidence([*runs, harder]), "abla-1")
    assert finding.verdict == "holds"
    assert "Ours 60.0" in finding.words
    assert finding.seeds == 1


def learned(values):
    """A matrix with these accuracies when a task is learned, and nothing else."""
    R = np.full((len(values), len(values)), np.nan)
    R[np.diag_indices(len(values))] = values
    R[-1] = values[-1]
    return R


@pytest.mark.parametrize(
    ("sgd", "ewc", "verdict"),
    [((0.5, 0.4), (0.5, 0.41), "holds"), ((0.5, 0.4), (0.5, 0.5), "weaker"), ((0.5, 0.5), (0.4, 0.5), "fails")],
)
def test_early_and_late(tmp_path, sgd, ewc, verdict):
    rule = PAPER.claims["stream-drop"].rules[0]
    runs = [
        record(tmp_path, "cifar10-permuted", method, R=learned([first] * 5 + [last] * 5))
        for method, (first, last) in (("sgd", sgd), ("ewc", ewc))
    ]
    assert judge(rule, evidence(runs), "fig1").verdict == verdict


def test_online_accuracy_counts_where_it_was_measured(tmp_path):
    rule = PAPER.claims["stream-drop"].rules[0]
    online = [0.5] * 5 + [0.3] * 5
    run = record(tmp_path, "cifar10-permuted", "sgd", R=learned([0.9] * 10), online_accuracy_by_task=online)
    finding = judge(rule, evidence([run]), "fig1")
    assert (finding.verdict, finding.words) == ("holds", "Baseline from 50 to 30")


def test_steps_that_shrink(tmp_path):
    rule = PAPER.claims["stiffen"].rules[0]
    norms = {"step_norm": [1.0] * 5 + [0.1] * 5}
    run = record(tmp_path, "tinyimagenet-labels", "ewc", R=learned([0.5] * 10), per_task=norms)
    assert judge(rule, evidence([run]), "perm").verdict == "holds"
    silent = record(tmp_path, "tinyimagenet-labels", "si", R=learned([0.5] * 10))
    assert judge(rule, evidence([silent]), "perm") is None


def test_a_short_stream_has_no_say(tmp_path):
    run = record(tmp_path, "cifar10-permuted", "sgd", R=learned([0.5] * 9))
    assert judge(PAPER.claims["stream-drop"].rules[0], evidence([run]), "fig1") is None


@pytest.mark.parametrize(("last", "verdict"), [(0.5, "holds"), (0.4, "fails")])
def test_steady(tmp_path, last, verdict):
    rule = PAPER.claims["plasticity-kept"].rules[0]
    run = record(tmp_path, "tinyimagenet-labels", "drcl", of_method=PRINTED, R=learned([0.5] * 5 + [last] * 5))
    assert judge(rule, evidence([run]), "perm").verdict == verdict


@pytest.mark.parametrize(("late", "verdict"), [(0.9, "holds"), (0.805, "weaker"), (0.7, "fails")])
def test_trend(tmp_path, late, verdict):
    told = {"effective_stability": [0.0, 0.8, 0.8, late, late]}
    run = record(tmp_path, "cifar100-20", "drcl", of_benchmark=RESNET, of_method=PRINTED, per_task=told)
    assert judge(PAPER.claims["sparser"].rules[0], evidence([run]), "l1-loss").verdict == verdict


@pytest.mark.parametrize(("lost", "verdict"), [(0.02, "holds"), (0.07, "weaker"), (0.15, "fails")])
def test_flat_on_a_stand_in(tmp_path, lost, verdict):
    """Two tasks; the first loses this much, SGD's loses 20 points. Characters of Omniglot stand in for CASIA."""
    ours = record(tmp_path, "omniglot-50", "drcl", 0, 0.5, -lost, of_method=PRINTED)
    theirs = record(tmp_path, "omniglot-50", "sgd", 0, 0.5, -0.2)
    finding = judge(PAPER.claims["flat"].rules[0], evidence([ours, theirs]), "forget")
    assert finding.verdict == verdict
    assert finding.words == f"{100 * lost:.1f} points at the end against 20.0"


def test_flat_of_the_first_tasks_alone(tmp_path):
    """Three tasks; EWC loses 20 points of the first and nothing of the second, DRCL one point of the first."""
    nan = np.nan
    ours, theirs = (np.array([[0.8, nan, nan], [0.8, 0.7, nan], [last, 0.7, 0.6]]) for last in (0.79, 0.6))
    runs = [
        record(tmp_path, "cifar100-10", "drcl", of_benchmark=ALEXNET, of_method=PRINTED, R=ours),
        record(tmp_path, "cifar100-10", "ewc", of_benchmark=ALEXNET, R=theirs),
    ]
    rule = PAPER.claims["first-task"].rules[0]
    assert judge(rule, evidence(runs), "plas-stab").words == "1.0 points at the end against 20.0"
    assert judge({**rule, "group": 2}, evidence(runs), "plas-stab").words == "0.5 points at the end against 10.0"


def study(**values):
    return {name: Study(name, {"a": {"accuracy": a}, "b": {"accuracy": b}}) for name, (a, b) in values.items()}


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ({"x": ("60", "50"), "y": ("51.5", "50")}, "holds"),
        ({"x": ("60", "50"), "y": ("50.5", "50")}, "weaker"),
        ({"x": ("60", "50"), "y": ("40", "50"), "z": ("40", "50")}, "fails"),
    ],
)
def test_study(values, verdict):
    rule = {"kind": "study", "column": "accuracy", "ours": "a", "theirs": "b", "margin": 1.0}
    assert judge(rule, evidence([], study(**values)), "").verdict == verdict


def test_a_study_without_the_variants_has_no_say():
    rule = {"kind": "study", "column": "accuracy", "ours": "a", "theirs": "c", "margin": 1.0}
    assert judge(rule, evidence([], study(x=("1", "2"))), "") is None


def test_findings_that_do_not_agree_are_weaker():
    assert verdict_of([Finding("holds", ""), Finding("holds", "")]) == "holds"
    assert verdict_of([Finding("holds", ""), Finding("fails", "")]) == "weaker"


def test_a_rule_that_decides_can_fail_a_claim_alone(tmp_path):
    found = judge({**HEAD, "decides": True}, evidence(headline(tmp_path, (0.5,), (0.6,))), "headline")
    assert found.decides
    assert verdict_of([Finding("holds", ""), found]) == "fails"
    assert verdict_of([Finding("holds", ""), Finding("fails", "")]) == "weaker"
    assert verdict_of([Finding("weaker", ""), Finding("holds", "", decides=True)]) == "weaker"
