"""Figure: average accuracy on the tasks seen so far."""

import numpy as np
from tests.lab.report.figures.looking import lines

from drcl.lab.report.figures import accuracy_curves


def test_accuracy_curve_is_the_mean_over_seeds(small):
    (line,) = lines(accuracy_curves.draw(small))
    # after task 1: (90 + 70) / 2; after task 2: (70 + 80) / 2; after task 3: (50 + 60 + 100) / 3
    np.testing.assert_allclose(line.get_ydata(), [80, 75, 70])
