"""The data files are whole: every name they use exists, and their numbers are the paper's."""

import math
import statistics
from pathlib import Path

import pytest

from drcl.lab import benchmarks, methods
from drcl.lab.paper.contents import BUDGETS, paper
from drcl.lab.paper.rules import KINDS
from drcl.lab.report.figures.paper import FIGURES

ROOT = Path(__file__).parents[3]
PAPER = paper()


def test_every_table_has_the_papers_rows_and_columns():
    assert list(PAPER.tables) == ["table1", "table2"]
    assert len(PAPER.tables["table1"].printed) == 15
    assert len(PAPER.tables["table2"].printed) == 11
    for table in PAPER.tables.values():
        assert [column.group for column in table.columns] == ["disjoint"] * 4 + ["joint"] * 2
        for row, printed in table.printed.items():
            assert len(printed) == 6
            assert len(table.averages[row]) == 2
            assert row in PAPER.experiments[table.experiment].rows


def test_ten_figures_are_those_that_can_be_drawn():
    assert list(PAPER.figures) == list(FIGURES)


@pytest.mark.parametrize(
    ("table", "row", "column", "mean", "deviation"),
    [
        ("table1", "drcl", 0, 71.9, 0.2),
        ("table1", "drcl", 3, 60.4, 0.5),
        ("table1", "ewc", 3, 29.6, 0.9),
        ("table1", "sb-mcl", 0, 72.3, 0.3),
        ("table1", "agem", 1, 57.8, 3.5),
        ("table2", "tag", 0, -1.2, None),
        ("table2", "drcl", 4, 3.7, None),
        ("table2", "ewc", 3, -17.4, None),
    ],
)
def test_numbers_as_printed(table, row, column, mean, deviation):
    """Read in the paper by hand."""
    printed = PAPER.tables[table].printed[row][column]
    assert (printed.mean, printed.deviation) == (mean, deviation)


# The paper's averages that are not the means of its rows, found by hand: (table, row, group) -> mean of the row.
WRONG = {
    ("table1", "sgd", 0): 47.0,
    ("table1", "ewc", 0): 49.625,
    ("table1", "ban", 0): 66.25,
    ("table1", "ban", 1): 86.9,
    ("table1", "sb-mcl", 1): 87.2,
    ("table1", "sgp", 1): 87.6,
    ("table1", "ibpcl", 0): 64.375,
    ("table2", "agem", 0): -13.025,
    ("table2", "pocl", 0): -5.0,
}


def test_a_slip_of_the_pen_would_show_in_the_averages():
    """Each printed average is the mean of its row to a tenth, but for those that the paper has wrong."""
    for name, table in PAPER.tables.items():
        for row, printed in table.printed.items():
            for group, (first, last) in enumerate(((0, 4), (4, 6))):
                mean = statistics.fmean(value.mean for value in printed[first:last])
                if (name, row, group) in WRONG:
                    assert mean == pytest.approx(WRONG[name, row, group])
                else:
                    assert math.isclose(mean, table.averages[row][group], abs_tol=0.0501), (name, row, group)


def test_every_name_exists():
    for name in PAPER.data:
        benchmarks.get(name)
    for row in PAPER.rows.values():
        methods.get(row.method)
    for experiment in PAPER.experiments.values():
        assert set(experiment.rows) <= set(PAPER.rows)
        assert set(experiment.row) <= set(experiment.rows)
        assert set(experiment.benchmarks) <= set(PAPER.data)
        assert set(experiment.like) <= set(experiment.benchmarks)
        assert set(experiment.like.values()) <= set(PAPER.experiments)
        assert set(experiment.seeds) == set(BUDGETS)
    for item in PAPER.items:
        assert PAPER.experiment_of(item).name in PAPER.experiments
    for data in PAPER.data.values():
        for budget in BUDGETS:
            assert data.at(budget)[0] in PAPER.data


def test_rules_name_what_exists():
    for claim in PAPER.claims.values():
        for rule in claim.rules:
            assert rule["kind"] in KINDS
            if rule["kind"] in ("study", "proved"):
                continue
            experiment = PAPER.experiments[rule.get("experiment", claim.experiment)]
            assert rule.get("benchmark", experiment.benchmarks[0]) in experiment.benchmarks
            for side in ("ours", "theirs", "rows"):
                assert set(rule.get(side, [])) <= set(PAPER.rows), claim.name


def test_what_settles_a_claim_is_there():
    for claim in PAPER.claims.values():
        for rule in claim.rules:
            if rule["kind"] == "proved":
                what = rule["by"].split()[-1]  # python -m MODULE, or pytest PATH
                assert (ROOT / (what.replace(".", "/") + ".py" if " -m " in rule["by"] else what)).exists()
                assert not rule.get("page") or (ROOT / "docs" / rule["page"]).is_file()


def test_the_headlines_rule_is_the_one_fixed_beforehand():
    (rule,) = PAPER.claims["over-ewc"].rules
    assert (rule["margin"], rule["fail"], rule["floor"]) == (5.0, 1.0, {"metric": "backward_transfer", "least": -4.0})
    assert PAPER.claims["over-ewc"].experiment == "headline"


def test_every_claim_asked_for_is_here():
    """One row at least for each claim of the paper that can be told."""
    wanted = {
        *("over-ewc", "over-sgp", "over-upgd", "over-agem", "l1-accuracy", "l1-aoa", "l1-sparsity", "l1-residual"),
        *("reflection", "k1", "early-stop", "lambda-10", "lambda-forgetting", "loss", "forgetting-matrix"),
        *("incremental-matrix", "stationary", "stationary-upgd", "sparser", "plasticity-lost", "stiffen", "flat"),
        *("stream-drop", "joint-transfer", "tag", "cost", "inference", "convergence", "replay"),
        *("best-average", "least-forgetting", "first-task", "sequence"),
    }
    assert wanted <= set(PAPER.claims)


def test_an_unknown_item_is_refused_with_the_nearest_name():
    with pytest.raises(ValueError, match=r"'tabel1' is not a table, figure or ablation of the paper: .*table1"):
        PAPER.experiment_of("tabel1")
