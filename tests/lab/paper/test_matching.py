"""Runs are found by what they were made with."""

import math
import tomllib
from pathlib import Path

import pytest
from tests.lab.paper.records import ALEXNET, PRINTED, RESNET, record

from drcl.lab.paper.contents import paper
from drcl.lab.paper.matching import find, fits, of_item, scale, series, setting, training_loss, value
from drcl.lab.paper.plan import plan
from drcl.lab.runs.read import Run

PAPER = paper()
TABLE = PAPER.experiments["table1"]


@pytest.fixture
def run(tmp_path):
    return record(
        tmp_path,
        "cifar100-10",
        "drcl",
        of_benchmark={**ALEXNET, "momentum": 0.9, "lr": 0.02},
        of_method={"momentum": 0.0, "strength": 10.0},
        training={"later_lr": 0.005},
    )


def test_a_setting_is_looked_up_where_it_belongs(run):
    assert setting(run, "momentum") == 0.0
    assert setting(run, "benchmark.momentum") == 0.9
    assert setting(run, "model.width") == 0.5
    assert setting(run, "later_lr") == 0.005
    assert setting(run, "patience") is None


@pytest.mark.parametrize(
    ("match", "expected"),
    [
        ({"strength": 10}, True),
        ({"strength": {"not": 10.0}}, False),
        ({"strength": [1.0, 10.0]}, True),
        ({"epochs": {"min": 3}}, True),
        ({"epochs": {"min": 4}}, False),
        ({"epochs": {"max": 2}}, False),
        ({"stable": "none"}, True),
        ({"later_lr": "none"}, False),
        ({"model.kind": "alexnet", "later_lr": 0.005}, True),
        ({"prox": "l1"}, False),
        ({"patience": {"min": 0}}, False),
    ],
)
def test_what_fits(run, match, expected):
    assert fits(run, match) is expected


def test_rows_of_one_method_are_told_apart(tmp_path):
    printed = record(tmp_path, "cifar100-10", "drcl", of_benchmark=ALEXNET, of_method=PRINTED)
    tuned = record(tmp_path, "cifar100-10", "drcl", of_benchmark=ALEXNET, of_method={**PRINTED, "strength": 0.01})
    runs = [printed, tuned]
    assert [r.path for r in find(PAPER, TABLE, "drcl", "cifar100-10", runs).runs] == [printed.path]
    assert [r.path for r in find(PAPER, TABLE, "drcl-tuned", "cifar100-10", runs).runs] == [tuned.path]
    assert find(PAPER, TABLE, "drcl", "cifar100-20", runs).runs == ()


def test_another_network_is_another_experiment(tmp_path):
    other = record(tmp_path, "cifar100-20", "ewc", of_benchmark=RESNET)
    assert find(PAPER, TABLE, "ewc", "cifar100-20", [other]).runs == ()
    assert [r.path for r in find(PAPER, PAPER.experiments["dense"], "ewc", "cifar100-20", [other]).runs] == [other.path]


def test_of_several_settings_the_one_with_most_seeds_counts_and_accuracy_does_not_choose(tmp_path):
    def ewc(seed, accuracy, lam):
        given = {"of_benchmark": ALEXNET, "of_method": {"lam": lam}}
        return record(tmp_path, "cifar100-10", "ewc", seed, accuracy, **given)

    low, high, single = [ewc(0, 0.4, 1.0), ewc(1, 0.4, 1.0)], [ewc(0, 0.6, 2.0), ewc(1, 0.6, 2.0)], ewc(0, 0.9, 3.0)
    found = find(PAPER, TABLE, "ewc", "cifar100-10", [*low, *high, single])
    assert [run.path for run in found.runs] == [run.path for run in low]  # the first by its settings
    assert found.others == 2
    more = ewc(2, 0.5, 2.0)
    found = find(PAPER, TABLE, "ewc", "cifar100-10", [*low, *high, single, more])
    assert [run.path for run in found.runs] == [run.path for run in (*high, more)]


def test_a_row_takes_only_runs_with_its_own_settings(tmp_path):
    def run(strength):
        given = {"strength": strength, "normalise": "share", "rank": 256}
        return record(tmp_path, "cifar100-10", "drcl-kronecker", 0, 0.5, of_benchmark=ALEXNET, of_method=given)

    tuned, default = run(0.03), run(0.003)
    found = find(PAPER, TABLE, "directions", "cifar100-10", [tuned, default])
    assert [each.path for each in found.runs] == [default.path]
    assert found.others == 0


def test_values_fall_back_on_the_result_where_the_drift_was_not_kept(tmp_path):
    run = record(tmp_path, "cifar100-10", "sgd", unmoved=0.25, effective_stability=0.5)
    assert value(run, "unmoved") == 0.25
    assert value(run, "effective_stability") == 0.5
    assert value(run, "parameters") == 100
    assert math.isnan(value(run, "residual"))


def test_the_training_loss_is_that_of_the_later_tasks(tmp_path):
    run = record(tmp_path, "cifar100-10", "sgd", curve=[(0, 9.0), (1, 2.0), (1, 1.0)])
    assert training_loss(run) == 1.5
    assert math.isnan(training_loss(record(tmp_path, "cifar100-10", "ewc")))


def test_a_series_is_what_the_result_keeps_per_task(tmp_path):
    run = record(tmp_path, "cifar100-10", "sgd", per_task={"step_norm": [1.0, None]})
    assert series(run, "step_norm")[0] == 1.0
    assert math.isnan(series(run, "step_norm")[1])
    assert series(run, "residual") == []


def test_the_runs_of_an_item(tmp_path):
    mine = record(tmp_path, "cifar100-20", "sgd", of_benchmark=ALEXNET)
    other_network = record(tmp_path, "cifar100-20", "sgd", of_benchmark=RESNET)
    stand_in = record(tmp_path, "digits-split", "sgd")
    runs = [mine, other_network, stand_in]
    assert [r.path for g in of_item(PAPER, "heat", runs, "small") for r in g.runs] == [mine.path]
    assert [r.path for g in of_item(PAPER, "heat", runs, "smoke") for r in g.runs] == [stand_in.path]
    (group,) = of_item(PAPER, "heat", runs, "small")
    assert group.label == "Baseline"  # as the paper calls plain SGD


def test_the_size_of_runs_in_words(run, tmp_path):
    assert scale([run]) == "alexnet at 0.5 width, 3 epochs"
    assert scale([]) == ""
    steps = record(tmp_path / "s", "cifar10-permuted", "sgd", of_benchmark={"model": {"kind": "mlp"}, "steps": 50})
    assert scale([steps]) == "mlp, 50 steps"


def test_stand_ins_of_the_same_data_are_told_apart(tmp_path):
    """Permuted digits of twelve tasks stand in for the characters, digits in shares for the faces."""
    twelve = record(tmp_path, "digits-permuted", "sgd", of_benchmark={"tasks": 12})
    shares = record(
        tmp_path, "digits-permuted", "sgd", of_benchmark={"tasks": 4, "builder": "shards", "scenario": "task"}
    )
    assert [r.path for g in of_item(PAPER, "forget", [twelve, shares], "smoke") for r in g.runs] == [twelve.path]
    assert [r.path for g in of_item(PAPER, "table1", [twelve, shares], "smoke") for r in g.runs] == [shares.path]


@pytest.mark.parametrize("item", [*PAPER.tables, *PAPER.figures, *PAPER.ablations])
@pytest.mark.parametrize("budget", ["small", "paper"])
def test_the_runs_that_are_planned_for_a_row_fit_it_and_no_other(item, budget):
    """Else the runs of one row would appear as settings of another."""
    experiment = PAPER.experiment_of(item)
    for each in plan(PAPER, [item], budget, skip=False, seeds=1).runs:
        run = Run(Path("run"), config=tomllib.loads(each.config.to_toml()))
        fit = [
            name
            for name in experiment.rows
            if PAPER.rows[name].method == run.config["method"] and fits(run, PAPER.rows[name].match)
        ]
        assert fit == [each.row]
        assert each.stand_in or fits(run, PAPER.on(experiment, each.benchmark).match)
