"""One line a method, with a band over its seeds."""

import math

import numpy as np
import pytest

from drcl.lab.report.figures import accuracy_curves


def test_band_is_one_standard_deviation(small):
    band = accuracy_curves.draw(small).axes[0].collections[0].get_paths()[0].vertices
    at_first = band[np.isclose(band[:, 0], 0), 1]
    spread = 20 / math.sqrt(2)  # of 90 and 70
    assert at_first.min() == pytest.approx(80 - spread)
    assert at_first.max() == pytest.approx(80 + spread)
