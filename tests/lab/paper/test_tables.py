"""A table filled with runs whose numbers are known."""

import math

import pytest
from tests.lab.paper.records import ALEXNET, PRINTED, record

from drcl.lab.paper.contents import paper
from drcl.lab.paper.tables import fill

PAPER = paper()


@pytest.fixture
def runs(tmp_path):
    def made(benchmark, method, seed, accuracy, **given):
        return record(tmp_path, benchmark, method, seed, accuracy, of_benchmark=ALEXNET, **given)

    return [
        made("cifar100-10", "ewc", 0, 0.50),
        made("cifar100-10", "ewc", 1, 0.54),
        made("cifar100-20", "ewc", 0, 0.62),
        made("cifar100-10", "drcl", 0, 0.55, of_method=PRINTED),
        made("cifar100-10", "joint", 0, 0.90),
    ]


def cell(filled, row, column):
    line = next(line for line in filled.lines if line.row == row)
    return line.cells[column]


def test_mean_and_deviation_beside_the_printed_number(runs):
    found = cell(fill(PAPER, "table1", runs), "ewc", 0)
    assert found.ours.mean == pytest.approx(52.0)
    assert found.ours.deviation == pytest.approx(math.sqrt(8))  # of 50 and 54
    assert (found.paper.mean, found.paper.deviation) == (63.5, 0.8)


def test_a_dash_where_nothing_was_run(runs):
    found = cell(fill(PAPER, "table1", runs), "hat", 0)
    assert math.isnan(found.ours.mean)
    assert found.paper.mean == 63.9


def test_the_best_is_marked_and_a_bound_does_not_compete(runs):
    filled = fill(PAPER, "table1", runs)
    assert cell(filled, "drcl", 0).best
    assert not cell(filled, "ewc", 0).best
    assert not cell(filled, "joint", 0).best
    assert not cell(filled, "ewc", 1).best  # alone in its column


def test_averages_are_over_what_was_run_and_the_papers_too(runs):
    filled = fill(PAPER, "table1", runs)
    found = cell(filled, "ewc", 4)
    assert found.ours.mean == pytest.approx((52 + 62) / 2)
    assert found.paper.mean == pytest.approx((63.5 + 62.5) / 2)
    assert math.isnan(cell(filled, "drcl", 4).ours.mean)  # it has one of the two
    assert cell(filled, "ewc", 7).paper.mean == 86.6  # as printed, where nothing was run
    assert any("average, ours and the paper's, is over CIFAR-100 [10], CIFAR-100 [20]" in note for note in filled.notes)


def test_columns_without_runs_can_be_left_out(runs):
    filled = fill(PAPER, "table1", runs).only_run()
    assert [head.title for head in filled.heads] == ["CIFAR-100 [10]", "CIFAR-100 [20]", "Avg."]
    assert {len(line.cells) for line in filled.lines} == {3}
    assert cell(filled, "ewc", 1).ours.mean == pytest.approx(62.0)


def test_the_layout_is_the_papers():
    filled = fill(PAPER, "table1", [])
    titles = [head.title for head in filled.heads]
    assert titles[:5] == ["CIFAR-100 [10]", "CIFAR-100 [20]", "TinyImgNet [20]", "ImgNet [100]", "Avg."]
    assert titles[5:] == ["CelebA [20]", "EMNIST [20]", "Avg."]
    assert [line.title for line in filled.lines][:4] == ["Multi-task", "Baseline", "A-GEM", "EWC"]
    assert filled.lines[-1].row == "drcl"  # nothing of ours was run
    assert filled.notes == ()


def test_rows_that_neither_side_has_are_left_out(runs):
    rows = [line.row for line in fill(PAPER, "table2", runs).lines]
    assert "hat" not in rows  # not in Table 2, and not run here
    assert "sgd" not in rows


def test_other_settings_are_told(runs, tmp_path):
    more = record(tmp_path, "cifar100-10", "ewc", 0, 0.7, of_benchmark=ALEXNET, of_method={"lam": 3.0})
    notes = fill(PAPER, "table1", [*runs, more]).notes
    assert "EWC was run in 2 settings: shown is the one with most seeds." in notes


def test_a_stand_in_is_shown_once_and_told(tmp_path):
    run = record(tmp_path, "digits-split", "sgd", accuracy=0.9)
    filled = fill(PAPER, "table1", [run], "smoke")
    assert cell(filled, "sgd", 0).ours.mean == pytest.approx(90)
    assert math.isnan(cell(filled, "sgd", 1).ours.mean)
    assert any(note.startswith("digits-split stands in for CIFAR-100 [10], CIFAR-100 [20]") for note in filled.notes)
    assert math.isnan(cell(fill(PAPER, "table1", [run], "small"), "sgd", 0).ours.mean)
