"""Figure of the paper: the first task, and all tasks."""

import numpy as np
import pytest
from tests.lab.report.fake_runs import R0, R1, write_run
from tests.lab.report.figures.paper.recorded import long_lines, words

from drcl.lab.report.figures.paper import NotEnough, draw, retention
from drcl.lab.runs.read import find


def test_the_lines_are_the_first_column_and_the_mean_of_each_row(tmp_path):
    for seed, R in enumerate((R0, R1)):
        write_run(tmp_path, "sgd", seed, R=R)
        write_run(tmp_path, "drcl", seed, R=R1)
    figure = draw("plas-stab", find([tmp_path]))
    left, right = figure.axes
    first = {tuple(np.round(line.get_ydata(), 6)) for line in long_lines(left)}
    assert first == {(80.0, 70.0, 50.0), (70.0, 70.0, 50.0)}  # sgd: the mean of 90 and 70
    whole = {tuple(np.round(line.get_ydata(), 6)) for line in long_lines(right)}
    assert whole == {(80.0, 75.0, 70.0), (70.0, 75.0, 70.0)}
    told = words(figure)
    assert "accuracy on task 1, %" in told
    assert "average accuracy, %" in told
    assert "after task" in told
    assert "sgd ends at 50.0 percent on task 1 and 70.0 on all tasks" in retention.describe(find([tmp_path]))


def test_only_seeds_that_all_methods_have_are_drawn(tmp_path):
    for seed, R in enumerate((R0, R1)):
        write_run(tmp_path, "sgd", seed, R=R)
    write_run(tmp_path, "drcl", 1, R=R0)
    write_run(tmp_path, "ewc", 0, R=R0)
    write_run(tmp_path, "ewc", 1, R=R1)
    write_run(tmp_path, "joint", 5, R=R1)  # is not drawn, so it does not decide
    figure = draw("plas-stab", find([tmp_path]))
    starts = {line.get_ydata()[0] for line in long_lines(figure.axes[0])}
    assert starts == {100 * R0[0, 0], 100 * R1[0, 0]}  # drcl's one seed, and the same seed of sgd and ewc
    assert "sgd ends at 50.0 percent on task 1 and 70.0" in retention.describe(find([tmp_path]))


def test_a_stream_tested_at_its_ends_is_refused(tmp_path):
    R = R0.copy()
    R[1, 0] = np.nan
    write_run(tmp_path, "sgd", 0, R=R)
    with pytest.raises(NotEnough, match="tested on all tasks seen"):
        draw("plas-stab", find([tmp_path]))
