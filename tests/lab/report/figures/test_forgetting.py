"""Figure: forgetting of the earlier tasks."""

import math

import numpy as np
from tests.lab.report.figures.looking import lines

from drcl.lab.report.figures import forgetting


def test_forgetting_curve(small):
    (line,) = lines(forgetting.draw(small))
    # after task 2: 90 - 70 = 20 and 70 - 70 = 0, mean 10
    # after task 3: ((90 - 50) + (80 - 60)) / 2 = 30 and ((70 - 50) + 20) / 2 = 20, mean 25
    np.testing.assert_allclose(line.get_ydata()[1:], [10, 25])
    assert math.isnan(line.get_ydata()[0])
