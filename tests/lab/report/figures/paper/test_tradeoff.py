"""Figure of the paper: forgetting and incremental accuracy."""

import numpy as np
import pytest
from tests.lab.report.fake_runs import R0, R1, write_run
from tests.lab.report.figures.paper.recorded import words

from drcl.lab.report.figures.paper import NotEnough, draw
from drcl.lab.runs.read import find


def test_a_bar_per_method_with_its_number(tmp_path):
    for seed, R in enumerate((R0, R1)):
        write_run(tmp_path, "sgd", seed, R=R)
    write_run(tmp_path, "drcl", 0, R=R1)
    figure = draw("matrix", find([tmp_path]))
    left, right = figure.axes
    # R0: (0.4 + 0.2) / 2, R1: (0.2 + 0.2) / 2; A_inc: (0.9 + 0.75 + 0.7) / 3 and (0.7 + 0.75 + 0.7) / 3
    np.testing.assert_allclose([bar.get_width() for bar in left.patches], [0.25, 0.2])
    np.testing.assert_allclose([bar.get_width() for bar in right.patches], [0.75, 2.15 / 3])
    told = words(figure)
    assert "average forgetting F_T" in told
    assert "average incremental accuracy A_inc" in told
    assert "0.25" in told


def test_a_row_of_panels_per_benchmark(tmp_path):
    write_run(tmp_path, "sgd", 0, R=R0)
    write_run(tmp_path, "sgd", 0, R=R1, benchmark="digits-split")
    assert len(draw("matrix", find([tmp_path])).axes) == 4


def test_runs_without_the_whole_matrix_are_refused(tmp_path):
    R = np.full((3, 3), np.nan)
    R[2] = 0.5
    write_run(tmp_path, "sgd", 0, R=R)
    with pytest.raises(NotEnough, match="matrix needs finished runs"):
        draw("matrix", find([tmp_path]))
