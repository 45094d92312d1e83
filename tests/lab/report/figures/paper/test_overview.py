"""Figure of the paper: accuracy against forgetting, a long stream, and the loss of old and new task."""

import numpy as np
import pytest
from tests.lab.report.fake_runs import R0, R1, write_run
from tests.lab.report.figures.paper.recorded import bare, long_lines, recorded, words

from drcl.lab.report.figures import style
from drcl.lab.report.figures.paper import NotEnough, draw, overview
from drcl.lab.runs.read import find


def test_three_panels_with_their_axes(tmp_path):
    runs = recorded(tmp_path)
    figure = draw("fig1", runs)
    left, middle, right = figure.axes
    assert len(left.containers) == 3  # a point per method
    assert len(long_lines(middle)) == 3
    assert len(long_lines(right)) == 4  # the old and the new task, of sgd and of drcl
    old, new = long_lines(right)[:2]
    np.testing.assert_allclose(old.get_ydata(), [0.1, 0.2, 0.3])
    np.testing.assert_allclose(new.get_ydata(), [2, 1, 2 / 3])
    np.testing.assert_allclose(old.get_xdata(), [0, 50, 100])
    told = words(figure)
    for word in (
        "average forgetting, points",
        "average accuracy, %",
        "after task",
        "training of task 2, %",
        "test loss",
    ):
        assert word in told


def test_the_points_are_the_measures(tmp_path):
    write_run(tmp_path, "sgd", 0, R=R0)
    write_run(tmp_path, "drcl", 0, R=R1)
    runs = find([tmp_path])
    points = {tuple(np.round(c.lines[0].get_xydata()[0], 6)) for c in draw("fig1", runs).axes[0].containers}
    assert points == {(30.0, 70.0), (20.0, 70.0)}
    assert "sgd 70.0 percent at 30.0 points of forgetting" in overview.describe(runs)


def test_without_losses_the_right_panel_says_so(tmp_path):
    assert "no losses.csv" in words(draw("fig1", bare(tmp_path)))


def test_the_pair_is_the_baseline_and_drcl_or_the_first_two(tmp_path):
    both = style.drawable(recorded(tmp_path / "a"))
    assert [g.method for g in overview.pair(both)] == ["sgd", "drcl"]
    others = style.drawable(recorded(tmp_path / "b", ("sgd", "ewc")))
    assert [g.method for g in overview.pair(others)] == ["sgd", "ewc"]


def test_the_middle_panel_is_of_the_longest_stream(tmp_path):
    recorded(tmp_path / "short")
    for method in ("sgd", "drcl"):
        write_run(tmp_path / "long", method, 0, tasks=12, benchmark="digits-split")
    figure = draw("fig1", find([tmp_path]))
    assert figure.axes[0].get_title(loc="left") == "digits-permuted"
    assert figure.axes[1].get_title(loc="left") == "digits-split"
    assert all(len(line.get_xdata()) == 12 for line in long_lines(figure.axes[1]))


def test_where_only_the_ends_were_tested_forgetting_is_from_when_a_task_was_learned(tmp_path):
    R = R0.copy()
    R[1, 0] = np.nan
    write_run(tmp_path, "sgd", 0, R=R)
    (run,) = find([tmp_path])
    assert overview.forgetting(run) == pytest.approx((0.4 + 0.2) / 2)


def test_one_method_alone_is_refused(tmp_path):
    with pytest.raises(NotEnough, match="fig1 needs finished runs of two methods or more"):
        draw("fig1", recorded(tmp_path, ("sgd",)))
    write_run(tmp_path, "drcl", 0, benchmark="digits-split")
    with pytest.raises(NotEnough, match="on the same tasks"):
        draw("fig1", find([tmp_path]))
