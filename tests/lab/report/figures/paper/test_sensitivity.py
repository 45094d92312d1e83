"""Figure of the paper: accuracy and forgetting against the strength."""

import numpy as np
import pytest
from tests.lab.report.fake_runs import final, write_run
from tests.lab.report.figures.paper.recorded import long_lines, words

from drcl.lab.report.figures.paper import NotEnough, draw, sensitivity
from drcl.lab.runs.read import find

ENDS = {0.1: (0.3, 0.9), 1.0: (0.5, 0.9), 10.0: (0.8, 0.7)}


def runs_at(root, strengths=tuple(ENDS), **options):
    for strength in strengths:
        for seed in range(2):
            first, last = ENDS[strength]
            given = {"strength": strength, **options}
            name = f"{strength}-{seed}-{options}"
            write_run(root, "drcl", seed, R=final(first, last), options=given, name=name)
    return find([root])


def test_both_measures_over_the_strengths_in_their_order(tmp_path):
    runs = runs_at(tmp_path, (10.0, 0.1, 1.0))
    figure = draw("abla-1", runs)
    left, right = figure.axes
    (accuracy,), (lost,) = long_lines(left), long_lines(right)
    np.testing.assert_allclose(accuracy.get_xdata(), [0.1, 1, 10])
    np.testing.assert_allclose(accuracy.get_ydata(), [60, 70, 75])
    np.testing.assert_allclose(lost.get_ydata(), [60, 40, 10])  # from 0.9 when learned
    assert left.get_xscale() == "log"
    told = words(figure)
    for word in ("strength lambda", "average accuracy, %", "forgetting, points", "drcl, digits-permuted"):
        assert word in told
    assert "75.0 percent and 10.0 points at 10" in sensitivity.describe(runs)


def test_another_option_is_another_line(tmp_path):
    runs_at(tmp_path)
    runs = runs_at(tmp_path, prox="l2")
    figure = draw("abla-1", runs)
    assert len(long_lines(figure.axes[0])) == 2
    assert len(figure.legends[0].get_texts()) == 2


def test_one_strength_is_too_few(tmp_path):
    write_run(tmp_path, "sgd", 0)
    with pytest.raises(NotEnough, match="abla-1 needs finished runs of one method at two strengths or more"):
        draw("abla-1", runs_at(tmp_path, (1.0,)))
