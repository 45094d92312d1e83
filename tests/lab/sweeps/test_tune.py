"""Tuning: the search itself on known functions, and that no test set is ever read."""

from __future__ import annotations

import math

import pytest

from drcl.lab import methods
from drcl.lab.benchmarks import Benchmark
from drcl.lab.common import fields as options
from drcl.lab.runs.config import RunConfig
from drcl.lab.runs.read import Run
from drcl.lab.streams.examples import Examples
from drcl.lab.sweeps import sweep, workers
from drcl.lab.sweeps.tune import Search, Trial, Tuning

QUICK = {"epochs": 1, "limit_per_class": 20}


def search(score, low=1e-3, high=1e3, budget=12) -> Search:
    made = Search(low, high, budget)
    while asked := made.proposals():
        for value in asked:
            made.scores[value] = score(value)
    return made


@pytest.mark.parametrize("peak", [0.02, 1.0, 5.0, 70.0])
def test_the_search_comes_near_a_peak_within_its_budget(peak):
    found = search(lambda value: -abs(math.log(value / peak)))
    assert len(found.scores) == 12
    assert abs(math.log(found.best / peak)) < math.log(2)


@pytest.mark.parametrize("peak", [1e-5, 1e5])
def test_the_search_leaves_a_range_that_was_chosen_wrong(peak):
    found = search(lambda value: -abs(math.log(value / peak)))
    assert abs(math.log(found.best / peak)) < math.log(10)


def test_the_first_trials_are_a_log_grid_and_a_tie_goes_to_the_middle():
    made = Search(0.01, 100.0, 9)
    assert made.proposals() == [0.01, 0.1, 1.0, 10.0, 100.0]
    made.scores = dict.fromkeys(made.proposals(), 0.5)
    assert made.best == 1.0
    assert made.proposals() == [1000.0]  # where something may change: more protection
    made.scores[1.0] = 0.4
    assert made.ties == [0.01, 0.1, 10.0, 100.0]
    assert made.best == 10.0  # as near to the middle as 0.1, and protects more


@pytest.mark.parametrize("step", [0.05, 3.0, 200.0])
def test_the_weakest_value_is_not_chosen_because_it_is_the_first(step):
    """A method that holds everything up to some strength, and less beyond it: ties at the weak end."""
    found = search(lambda value: 0.9 if value <= step else 0.5)
    assert found.best != min(found.scores)
    assert found.scores[found.best] == 0.9
    assert abs(math.log(found.best)) == min(abs(math.log(value)) for value in found.ties)


def test_a_tie_of_all_that_failed_looks_where_less_is_asked():
    made = Search(0.01, 100.0, 9)
    made.scores = dict.fromkeys(made.proposals(), -math.inf)
    assert made.proposals() == [0.001]


def test_scores_that_differ_in_the_last_bit_are_equal():
    made = Search(0.01, 1.0, 3, scores={0.01: 0.1 + 0.2, 0.1: 0.3, 1.0: 0.2})
    assert made.ties == [0.01, 0.1]
    assert made.best == 0.1


def test_an_end_of_the_range_is_known_with_the_range_to_look_in_next():
    made = Search(0.01, 100.0, 5, scores={0.01: 0.1, 1.0: 0.2, 100.0: 0.3})
    assert made.end == "high"
    assert made.wider() == (1.0, 10_000.0)
    made.scores[0.01] = 0.4
    assert made.end == "low"
    assert made.wider() == (1e-4, 1.0)
    made.scores[1.0] = 0.5
    assert made.end == ""
    made = Search(0.5, 0.9, 5, lambda value: 0 < value < 1, {0.5: 0.1, 0.7: 0.2, 0.9: 0.3})
    assert made.end == "high"
    assert made.wider() is None


def made_trials(tuning, scores, tmp_path):
    return [
        Trial(method, tuning.key(method), value, score, (score,), "done", tmp_path / "trials" / method)
        for method, values in scores.items()
        for value, score in values.items()
    ]


def test_ties_and_ends_are_said_with_the_command_to_try_next(tmp_path):
    names = ["ewc", "l2", "mas"]
    tuning = Tuning("digits-permuted", names, tmp_path, 1, 3, low=0.01, high=1.0, options={"epochs": 1})
    scores = {
        "ewc": {0.01: 0.5, 0.1: 0.5, 1.0: 0.4},
        "l2": {0.01: 0.5, 0.1: 0.6, 1.0: 0.7},
        "mas": dict.fromkeys((0.01, 0.1, 1.0), 0.25),
    }
    trials = made_trials(tuning, scores, tmp_path)
    assert {method: trial.value for method, trial in tuning.best(trials).items()} == {"ewc": 0.1, "l2": 1.0, "mas": 0.1}
    equal, edge, nothing = tuning.remarks(trials)
    assert equal.startswith("ewc: lam = 0.01, 0.1 scored the same (50.0 %); 0.1 was taken")
    assert edge.startswith("l2: lam = 1 is the largest value that was tried")
    command = edge.partition("look there with: ")[2].split()
    assert command[:7] == ["drcl", "tune", "digits-permuted", "--methods", "l2", "--range", "0.1:10"]
    assert "epochs=1" in command
    assert nothing.startswith("mas: lam makes no difference here: every value from 0.01 to 1 scored 25.0 %")
    tuning.write(trials)
    written = (tmp_path / "tuned.toml").read_text()
    assert all(f"# {remark}\n" in written for remark in (equal, edge, nothing))
    assert {config.method for config in sweep.read(tmp_path / "tuned.toml")} == {"ewc", "l2", "mas"}


def test_a_value_is_never_tried_twice_even_if_all_fail():
    found = search(lambda value: -math.inf)
    assert len(found.scores) == 12


SENSELESS = [{"low": 0.0}, {"low": 5.0, "high": 1.0}, {"high": math.inf}, {"budget": 2}, {"budget": 10**8}]


@pytest.mark.parametrize("given", SENSELESS)
def test_a_senseless_search_is_refused(given):
    with pytest.raises(ValueError, match=r"range|budget"):
        Search(**{"low": 1.0, "high": 10.0, "budget": 5, **given})


def test_the_search_turns_back_where_a_method_allows_no_more():
    made = Search(0.5, 0.99, 12, lambda value: 0 < value < 1)
    while asked := made.proposals():
        for value in asked:
            made.scores[value] = value  # the best would lie at the very end
    assert len(made.scores) == 12
    assert all(0.5 <= value < 1 for value in made.scores)
    assert made.best == 0.99  # an end is tried as it was given, not rounded up to 1


def test_close_values_get_the_digits_that_tell_them_apart():
    made = Search(0.98, 0.99, 9, lambda value: 0.98 <= value <= 0.99)
    seen: list[float] = []
    while asked := made.proposals():
        seen += asked
        made.scores |= {value: -abs(value - 0.986) for value in asked}
    assert len(seen) == len(set(seen)) == 9
    assert abs(made.best - 0.986) < 0.002


def test_the_best_of_failed_trials_is_none(tmp_path):
    lost = Trial("ewc", "lam", 1.0, -math.inf, (), "it diverged", tmp_path)
    tuning = Tuning("digits-permuted", ["ewc"], tmp_path)
    assert tuning.best([lost]) == {}
    assert tuning.remarks([lost]) == []
    (sentence,) = tuning.remarks([lost, Trial("ewc", "lam", 2.0, 0.5, (0.5,), "done", tmp_path)])
    assert sentence == "ewc: lam = 2 is the only value whose run worked; trials.csv says why"


class Forbidden(Examples):
    """A test set that must not be looked at."""

    def __init__(self, like: Examples) -> None:
        self.__dict__.update(like.__dict__)

    def __getattribute__(self, name):
        if name.startswith("__"):
            return super().__getattribute__(name)
        raise AssertionError(f"the test set was read: {name}")

    def __len__(self):
        raise AssertionError("the test set was counted")


@pytest.fixture
def guarded(monkeypatch):
    """Every stream's test sets raise when they are touched."""
    real = Benchmark.stream

    def stream(self, *args, **given):
        made = real(self, *args, **given)
        build = made._make

        def make(index):
            task = build(index)
            object.__setattr__(task, "test", Forbidden(task.test))
            return task

        made._make = make
        return made

    monkeypatch.setattr(Benchmark, "stream", stream)


def test_the_guard_bites(guarded, tmp_path):
    job = sweep.jobs(sweep.plan({"benchmarks": "digits-split", "methods": "sgd", "options": QUICK}), tmp_path)
    outcome = sweep.run(job, workers.here)
    assert "the test set was" in outcome.failed[0][1]


def test_tuning_reads_no_test_set_and_gives_every_method_the_same(guarded, tmp_path):
    tuning = Tuning("digits-permuted", ["ewc", "drcl"], tmp_path, tasks=2, budget=4, options=QUICK)
    trials = tuning.run(workers.here)
    assert {trial.outcome for trial in trials} == {"done"}
    for method, key in (("ewc", "lam"), ("drcl", "strength")):
        mine = [trial for trial in trials if trial.method == method]
        assert len({trial.value for trial in mine}) == 4
        assert {trial.key for trial in mine} == {key}
    for trial in trials:
        run = Run.read(trial.directory)
        assert run.tasks == 2
        assert run.seed == 0
        assert trial.score == pytest.approx(sum(run.matrix[-1]) / 2, abs=1e-12)


def test_validation_data_is_held_out_of_training_where_there_is_none(tmp_path):
    tuning = Tuning("digits-permuted", ["ewc"], tmp_path, tasks=1, budget=3, options=QUICK)
    config = tuning.config("ewc", 1.0)
    task = config.make_benchmark().stream(seed=0, **config.stream_options())[0]
    full = RunConfig.make("digits-permuted", "ewc", 0, QUICK)
    whole = full.make_benchmark().stream(seed=0, **full.stream_options())[0]
    assert len(task.valid) > 0
    assert len(task.train) + len(task.valid) == len(whole.train)


def test_an_option_may_be_given_to_one_method_alone(tmp_path):
    given = {"epochs": 1, "drcl.splitting": "forward-backward"}
    tuning = Tuning("digits-permuted", ["ewc", "drcl"], tmp_path, tasks=1, options=given)
    assert tuning.config("drcl", 0.5).method_options == {"splitting": "forward-backward", "strength": 0.5}
    assert tuning.config("ewc", 0.5).method_options == {"lam": 0.5}
    with pytest.raises(ValueError, match="not tuned here"):
        Tuning("digits-permuted", ["ewc"], tmp_path, tasks=1, options=given)


def test_a_shared_option_keeps_its_owner_in_the_file(tmp_path):
    given = {"benchmark.momentum": "0.5", "lr": "0.25"}
    tuning = Tuning("digits-permuted", ["l2", "drcl"], tmp_path, tasks=1, options=given)
    trials = [Trial(m, tuning.key(m), 0.5, 0.9, (0.9,), "done", tmp_path / "trials" / m) for m in ("l2", "drcl")]
    tuning.write(trials)
    for config in sweep.read(tmp_path / "tuned.toml"):
        assert config.benchmark_options == {"momentum": 0.5, "lr": 0.25}
        assert config.method_options == {tuning.key(config.method): 0.5}


def test_a_run_judged_on_validation_data_needs_some(tmp_path):
    plan = {"benchmarks": "digits-split", "methods": "sgd", "options": {**QUICK, "evaluate_on": "valid"}}
    outcome = sweep.run(sweep.jobs(sweep.plan(plan), tmp_path), workers.here)
    assert "hold some out with valid=0.2" in outcome.failed[0][1]


WITHOUT = {"agem", "drcl-auto", "er", "joint", "sgd", "spg"}


@pytest.mark.parametrize("method", methods.names())
def test_every_method_names_what_is_tuned_or_has_nothing_to_tune(method, tmp_path):
    if method in WITHOUT:
        with pytest.raises(ValueError, match=f"'{method}' has no strength to tune"):
            Tuning("digits-split", [method], tmp_path)
        return
    tuning = Tuning("digits-split", [method], tmp_path)
    own = methods.get(method).tunes
    for value in tuning.search(method).proposals():
        assert tuning.config(method, value).method_options == {own.name: value}
    usual = options.defaults(methods.get(method))[own.name]
    assert own.low <= usual <= own.high


def test_what_the_papers_tune():
    found = {m: methods.get(m).tunes.name for m in methods.names() if m not in WITHOUT}
    assert found == {
        **dict.fromkeys(("drcl", "drcl-kronecker", "ucl"), "strength"),
        **{"si": "c", "tag": "b", "upgd": "sigma", "mesu": "c_sigma", "packnet": "prune"},
        **{"pocl": "inner_lr", "sb-mcl": "beta0", "ibpcl": "kl", "ban": "kl"},
        **dict.fromkeys(("gpm", "became", "trgp", "cuber"), "threshold"),
        **{"sgp": "alpha", "owm": "alpha", "der++": "alpha", "ncl": "prior", "wsn": "density"},
        **dict.fromkeys(("ewc", "kf-laplace", "r-ewc", "evcl", "hat", "l2", "lwf", "mas", "star"), "lam"),
    }


def test_an_option_that_has_nothing_to_do_with_the_range_is_not_blamed_on_it(tmp_path):
    with pytest.raises(ValueError, match="epochs") as refusal:
        Tuning("digits-split", ["ewc"], tmp_path, options={"epochs": 0})
    assert "range" not in str(refusal.value)
    with pytest.raises(ValueError, match="'lamb' is not an option of 'ewc': did you mean 'lam'"):
        Tuning("digits-split", ["ewc"], tmp_path, keys={"ewc": "lamb"})


def test_whole_numbers_are_tuned_by_name(tmp_path):
    tuning = Tuning("digits-split", ["er"], tmp_path, budget=5, low=10, high=1000, keys={"er": "memory"})
    assert tuning.search("er").proposals() == [10, 100, 1000]
    assert tuning.config("er", 100.0).method_options == {"memory": 100}
    with pytest.raises(ValueError, match=r"memory=0.001: give a whole number"):
        Tuning("digits-split", ["er"], tmp_path, keys={"er": "memory"})


def test_each_method_is_searched_in_its_own_range(tmp_path):
    given = {"epochs": 1, "limit_per_class": 10, "model.hidden": [8]}
    tuning = Tuning("digits-split", ["si", "wsn"], tmp_path, tasks=1, budget=4, options=given)
    trials = tuning.run(workers.here)
    assert {trial.outcome for trial in trials} == {"done"}
    values = {m: [t.value for t in trials if t.method == m] for m in ("si", "wsn")}
    assert values["si"][:3] == [0.001, 1.0, 1000.0]
    assert values["wsn"][:3] == [0.01, 0.1, 1.0]
    assert len(values["si"]) == len(values["wsn"]) == 4
    assert all(0 < value <= 1 for value in values["wsn"])
