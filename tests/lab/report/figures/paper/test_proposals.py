"""Figure of the paper: proposed and kept updates."""

import numpy as np
import pytest
from tests.lab.report.figures.paper.recorded import bare, recorded, words

from drcl.lab.report.figures.paper import NotEnough, draw, proposals


def test_a_column_per_task_with_proposals_above_what_was_kept(tmp_path):
    runs = recorded(tmp_path, tasks=4)
    figure = draw("l1-loss", runs)
    assert len(figure.axes) == 6  # tasks 2, 3 and 4, twice
    top, bottom = figure.axes[0], figure.axes[3]
    heights = [[seg[1][1] for seg in ax.collections[0].get_segments()] for ax in (top, bottom)]
    np.testing.assert_allclose(heights[0], [-2, -1, 0, 1, 2, 3])  # in hundredths, as the axis says
    np.testing.assert_allclose(heights[1], [0, 0, 0, 1, 2, 3])
    assert top.get_ylim() == bottom.get_ylim()
    told = words(figure)
    assert "proposed, 1e-02" in told
    assert "let through, 1e-02" in told
    assert "task 4" in told
    assert "81 % left in place" in told
    # 6 of 9 hundredths were let through
    assert "drcl lets 67 percent of the proposals through at task 2" in proposals.describe(runs)


def test_of_many_tasks_some_are_chosen():
    assert proposals.chosen(range(1, 4)) == [1, 2, 3]
    assert proposals.chosen(range(1, 20)) == [1, 5, 10, 15, 19]


def test_other_methods_filter_nothing_and_are_refused(tmp_path):
    with pytest.raises(NotEnough, match="l1-loss needs a finished run of drcl"):
        draw("l1-loss", recorded(tmp_path / "a", ("sgd", "ewc")))
    with pytest.raises(NotEnough, match=r"updates\.csv"):
        draw("l1-loss", bare(tmp_path / "b"))
