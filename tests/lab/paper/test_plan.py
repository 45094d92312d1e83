"""From an item and a budget to runs."""

import pytest
from tests.lab.paper.records import record

from drcl.lab.paper.contents import BUDGETS, paper
from drcl.lab.paper.matching import find
from drcl.lab.paper.plan import by_hand, missing_data, own_options, plan, tunable

PAPER = paper()


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("item", list(PAPER.items))
def test_every_item_has_runs_at_every_budget(item, budget):
    """Each config is checked as it is made: options, benchmark and method."""
    found = plan(PAPER, [item], budget, skip=False)
    experiment = PAPER.experiment_of(item)
    rows = len(experiment.rows) - (
        (experiment.name, budget) == ("cost", "small")
    )  # trials chose the printed lambda for L2
    assert len(found.runs) == len(experiment.benchmarks) * rows * experiment.seeds[budget]


def test_smoke_needs_no_data_and_says_what_stands_in(tmp_path):
    found = plan(PAPER, list(PAPER.items), "smoke", root=tmp_path)
    assert not found.skipped
    assert {run.config.benchmark for run in found.runs} == {"digits-split", "digits-permuted"}
    assert set(found.stand_ins) == {run.benchmark for run in found.runs}


def test_shared_stand_ins_are_run_once():
    found = plan(PAPER, ["table1"], "smoke")
    assert len(found.runs) == 6 * 18
    assert len(found.configs) == 2 * 18


def test_data_that_are_not_there_are_skipped_with_a_word(tmp_path):
    found = plan(PAPER, ["table1"], "small", root=tmp_path)
    assert not found.runs
    assert set(found.skipped) == set(PAPER.experiments["table1"].benchmarks)
    assert found.skipped["cifar100-10"] == "cifar100 is not here (drcl data fetch cifar100)"
    assert found.skipped["celeba-20"] == "celeba is not here (drcl data path celeba says where it belongs)"


def test_what_is_printed_is_what_is_run():
    """The paper's hyperparameters: k = 5, lambda = 10, rate 0.005 from the second task on, the latest task."""
    (config,) = [r.config for r in plan(PAPER, ["l1-loss"], "paper", skip=False).runs]
    method = config.resolved().method_options
    assert (method["iterations"], method["strength"], method["memory"]) == (5, 10.0, "latest")
    assert (method["splitting"], method["prox"], method["momentum"]) == ("douglas-rachford", "l1", 0.0)
    assert config.training["later_lr"] == 0.005
    assert config.make_benchmark().model == {"kind": "resnet18", "norm": "per-task"}


def test_small_is_half_width_and_few_epochs():
    made = [r.config.make_benchmark() for r in plan(PAPER, ["table1"], "small", skip=False).runs]
    assert {one.model["width"] for one in made} == {0.5}
    assert max(one.epochs for one in made) == 3


def test_the_headlines_conditions():
    made = [r.config.make_benchmark() for r in plan(PAPER, ["headline"], "small", skip=False).runs]
    conditions = {(one.model["width"], one.epochs, one.lr, one.schedule, one.momentum) for one in made}
    assert conditions == {(0.5, 12, 0.05, "constant", 0.0)}
    seeds = {r.config.seed for r in plan(PAPER, ["headline"], "small", skip=False).runs}
    assert seeds == {0, 1, 2}


def test_a_plans_own_runs_fit_its_rows(tmp_path):
    """Runs can be found again: every config matches the settings that identify its own row."""

    for item in PAPER.items:
        experiment = PAPER.experiment_of(item)
        for run in plan(PAPER, [item], "small", skip=False, seeds=1).runs:
            full = run.config.resolved()
            told = {
                "of_benchmark": {k: v for k, v in full.benchmark_options.items() if v is not None},
                "of_method": {k: v for k, v in full.method_options.items() if v is not None},
                "training": {k: v for k, v in full.training.items() if v is not None},
            }
            made = record(tmp_path / item, run.config.benchmark, run.config.method, **told)
            found = find(PAPER, experiment, run.row, run.config.benchmark, [made], stand_in=run.stand_in)
            assert found.runs, (item, run.row)


def test_a_row_whose_trials_chose_the_strength_of_another_is_not_planned_twice():
    def rows(strength):
        tuned = {("cub-20", "drcl-l2-tuned"): {"method.strength": strength}}
        found = plan(PAPER, ["cost"], "small", strengths=tuned, skip=False, rows=["drcl-l2", "drcl-l2-tuned"])
        return [run.row for run in found.runs]

    assert rows(10.0) == ["drcl-l2"]  # as printed
    assert rows(1.0) == ["drcl-l2", "drcl-l2-tuned"]


def test_options_of_the_command_line_win():
    found = plan(PAPER, ["headline"], "small", {"epochs": "2", "ewc.lam": "7"}, skip=False)
    lam = {run.row: run.config.method_options.get("lam") for run in found.runs if run.config.method == "ewc"}
    assert lam == {"ewc": 7.0, "ewc-slow": PAPER.experiments["headline"].strengths["small"]["ewc-slow"]}
    assert {run.config.make_benchmark().epochs for run in found.runs} == {2}


def test_a_tuned_strength_replaces_the_files():
    tuned = {("cifar100-10", "ewc"): {"method.lam": 33.0}}
    found = plan(PAPER, ["headline"], "small", strengths=tuned, skip=False)
    assert {run.config.method_options["lam"] for run in found.runs if run.row == "ewc"} == {33.0}
    given = plan(PAPER, ["headline"], "small", {"ewc.lam": "5"}, strengths=tuned, skip=False)
    assert {run.config.method_options["lam"] for run in given.runs if run.row == "ewc"} == {5.0}


def test_an_option_for_a_row_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match=r"-o hat\.lam: hat is not among the rows of headline"):
        plan(PAPER, ["headline"], "small", {"hat.lam": "1"})


def test_a_figure_shares_the_runs_of_a_table_where_it_says_so():
    """The last panel of fig1 shows the ten tasks of table1, so the same runs serve both."""

    def made(item, rows):
        found = plan(PAPER, [item], "small", rows=rows, skip=False)
        return [run.config.to_toml() for run in found.runs if run.benchmark == "cifar100-10"]

    rows = ["sgd", "upgd", "drcl", "directions"]
    assert len(made("fig1", rows)) == len(rows)
    assert made("fig1", rows) == made("table1", rows)


def test_part_of_a_plan():
    whole = plan(PAPER, ["table1"], "smoke")
    part = plan(PAPER, ["table1"], "smoke", rows=["sgd", "ewc"]).only(["cifar100-10"])
    assert {(run.row, run.benchmark) for run in part.runs} == {("sgd", "cifar100-10"), ("ewc", "cifar100-10")}
    assert len(whole.only([]).runs) == len(whole.runs)
    with pytest.raises(ValueError, match=r"row 'ewk' is not part of this: .*ewc"):
        plan(PAPER, ["table1"], "smoke", rows=["ewk"])
    with pytest.raises(ValueError, match="benchmark 'cifar' is not part of this"):
        whole.only(["cifar"])


def test_an_option_need_only_suit_the_rows_that_are_asked_for():
    """SGD has no lam: it is refused for all rows, and fine for EWC's alone."""
    with pytest.raises(ValueError, match="'lam' is not an option of method 'joint'"):
        plan(PAPER, ["headline"], "small", {"lam": 3.0}, skip=False)
    (run, *_) = plan(PAPER, ["headline"], "small", {"lam": 3.0}, skip=False, rows=["ewc"]).runs
    assert run.config.method_options["lam"] == 3.0


def test_the_data_of_a_benchmark(tmp_path):
    assert missing_data("cifar100-10", tmp_path) == ["cifar100"]
    assert missing_data("digits-split", tmp_path) == []
    assert by_hand("celeba-20") == ["celeba"]
    assert by_hand("cifar100-10") == []


def test_what_a_row_takes_of_the_options():
    given = {"epochs": 1, "ewc.lam": 2, "sgp.alpha": 3}
    assert own_options(PAPER, PAPER.rows["ewc"], given) == {"epochs": 1, "lam": 2}


def test_what_can_be_tuned():
    assert tunable(PAPER.rows["ewc"]) == "lam"
    assert tunable(PAPER.rows["drcl-tuned"]) == "strength"
    assert tunable(PAPER.rows["drcl"]) == ""
    assert tunable(PAPER.rows["sgd"]) == ""
