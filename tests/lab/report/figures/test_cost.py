"""Figure: what accuracy costs."""

import numpy as np
from tests.lab.report.fake_runs import R0, write_run
from tests.lab.report.figures.looking import texts

from drcl.lab.report.figures import cost
from drcl.lab.runs import read


def test_cost_points(tmp_path):
    write_run(tmp_path, "sgd", 0, R=R0, seconds=10.0)
    write_run(tmp_path, "drcl", 0, R=R0, seconds=15.0)
    figure = cost.draw(read.find([tmp_path]))
    points = sorted((line.get_xdata()[0], line.get_ydata()[0]) for line in figure.axes[0].get_lines())
    np.testing.assert_allclose(points, [(1.0, 70.0), (1.5, 70.0)])
    assert sorted(texts(figure)) == ["drcl", "sgd"]


def test_cost_in_seconds_where_there_is_no_sgd(tmp_path):
    write_run(tmp_path, "ewc", 0, R=R0, seconds=12.0)
    runs = read.find([tmp_path])
    assert cost.draw(runs).axes[0].get_xlabel() == "time to learn, seconds"
    assert "seconds: ewc at 12.00, 70.0 percent" in cost.describe(runs)
