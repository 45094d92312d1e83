"""Figure of the paper: forgetting in blocks of ten tasks."""

import numpy as np
import pytest
from tests.lab.report.fake_runs import write_run
from tests.lab.report.figures.paper.recorded import long_lines, words

from drcl.lab.report.figures.paper import NotEnough, blocks, draw
from drcl.lab.runs.read import find

TASKS = 23


def falling(step: float) -> np.ndarray:
    """Every task starts at 1 and loses `step` at each later task."""
    i, j = np.mgrid[:TASKS, :TASKS]
    return np.where(i >= j, 1 - step * (i - j), np.nan)


def test_a_panel_per_block_and_one_for_all(tmp_path):
    write_run(tmp_path, "sgd", 0, R=falling(0.04))
    write_run(tmp_path, "drcl", 0, R=falling(0.01))
    figure = draw("forget", find([tmp_path]))
    assert [ax.get_title(loc="left") for ax in figure.axes] == [
        *("tasks 1 to 10", "tasks 11 to 20", "tasks 21 to 23", "average over all tasks")
    ]
    ends = sorted(line.get_ydata()[-1] for line in long_lines(figure.axes[0]))
    # The first ten tasks are on average 17.5 tasks old after the last one, which has number 22 when counted from 0.
    np.testing.assert_allclose(ends, [17.5, 70.0])
    assert "forgetting, points" in words(figure)
    assert "sgd has lost 70.0, 30.0, 6.0 points of the blocks" in blocks.describe(find([tmp_path]))


def test_a_block_begins_when_one_of_its_tasks_is_behind():
    found = blocks.blocks(21)
    assert list(found) == ["tasks 1 to 10", "tasks 11 to 20", "average over all tasks"]  # the last task comes alone


def test_ten_tasks_are_too_few_and_so_are_the_ends(tmp_path):
    write_run(tmp_path, "sgd", 0, tasks=10)
    with pytest.raises(NotEnough, match="eleven tasks or more"):
        draw("forget", find([tmp_path]))
    R = np.full((12, 12), np.nan)
    np.fill_diagonal(R, 0.9)
    R[-1] = 0.5
    write_run(tmp_path, "drcl", 0, R=R)
    with pytest.raises(NotEnough, match="of which none will do"):
        draw("forget", find([tmp_path]))
