"""One line per method, with a band over its seeds."""

import math

import numpy as np
import pytest
from tests.lab.report.fake_runs import final, write_run

from drcl.lab.report.figures import accuracy_curves, cost
from drcl.lab.runs import read


def test_band_is_one_standard_deviation(small):
    band = accuracy_curves.draw(small).axes[0].collections[0].get_paths()[0].vertices
    at_first = band[np.isclose(band[:, 0], 0), 1]
    spread = 20 / math.sqrt(2)  # of 90 and 70
    assert at_first.min() == pytest.approx(80 - spread)
    assert at_first.max() == pytest.approx(80 + spread)


def test_no_band_and_no_error_bar_leaves_what_can_be(tmp_path):
    """Two seeds at 99 and 61 per cent: the mean and one deviation would be 106.9."""
    for seed, accuracy in enumerate((0.99, 0.61)):
        write_run(tmp_path, "sgd", seed, R=final(accuracy, accuracy, accuracy), seconds=(1.0, 100.0)[seed])
    for seed, accuracy in enumerate((0.0, 0.2)):
        write_run(tmp_path, "ewc", seed, R=final(accuracy, accuracy, accuracy), seconds=5.0)
    runs = read.find([tmp_path])
    ax = accuracy_curves.draw(runs).axes[0]
    heights = np.concatenate([band.get_paths()[0].vertices[:, 1] for band in ax.collections])
    assert heights.max() == 100
    assert heights.min() == 0
    bars = np.concatenate([np.concatenate(c.get_segments()) for c in cost.draw(runs).axes[0].collections])
    assert bars[:, 0].min() >= 0
    assert bars[:, 1].min() >= 0
    assert bars[:, 1].max() <= 100
