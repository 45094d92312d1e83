"""Figure of the paper: density of the changes, and training loss."""

import numpy as np
import pytest
from tests.lab.report.figures.paper.recorded import bare, long_lines, recorded, words

from drcl.lab.report.figures.paper import NotEnough, density, draw


def test_shares_are_of_all_weights_after_the_first_task(tmp_path):
    runs = recorded(tmp_path)
    drcl = next(run for run in runs if run.method == "drcl")
    found = density.shares(drcl)
    assert found[0] == pytest.approx(0.81)
    assert sum(found) == pytest.approx(1.0)
    assert found[1 + 9] == pytest.approx(0.09)


def test_a_line_and_a_bar_per_method_and_a_loss_curve(tmp_path):
    runs = recorded(tmp_path)
    figure = draw("dense", runs)
    left, right = figure.axes
    np.testing.assert_allclose(sorted(bar.get_height() for bar in left.patches), [0, 0, 81], atol=1e-9)
    assert len(long_lines(left)) == 3
    assert len(long_lines(right)) == 3
    # The loss of the made-up runs is 2.3, 0.92 and 0.368 after their three epochs of 184 steps.
    line = long_lines(right)[0]
    np.testing.assert_allclose([line.get_ydata()[0], line.get_ydata()[-1]], [2.3, 0.368])
    np.testing.assert_allclose([line.get_xdata()[0], line.get_xdata()[-1]], [184, 552])
    told = words(figure)
    for word in ("|change| of a weight over a task", "share of weights, %", "step of a task", "training loss"):
        assert word in told
    assert "drcl leaves 81 percent in place and ends at a loss of 0.37" in density.describe(runs)


def test_runs_without_histograms_are_refused(tmp_path):
    with pytest.raises(NotEnough, match=r"dense needs .* changes\.csv and curve\.csv"):
        draw("dense", bare(tmp_path))
