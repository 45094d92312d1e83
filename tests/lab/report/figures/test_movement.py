"""Figure: how far each task moved the weights."""

import math

import pytest
from tests.lab.report.fake_runs import R0, write_run

from drcl.lab.report.figures import movement
from drcl.lab.runs import read


def test_the_change_of_layers_is_weighted_by_their_size(tmp_path):
    path = write_run(tmp_path, "drcl", 0, R=R0)
    rows = ["0,a,100,0.0,1,1,1", "0,b,300,0.0,1,1,1", "1,a,100,0.2,1,1,1", "1,b,300,1.0,0,0,0"]
    head = "task,layer,weights,unmoved,mean_change,largest_change,relative_change"
    (path / "drift.csv").write_text("\n".join([head, *rows]) + "\n")
    runs = read.find([tmp_path])
    found = movement.relative_change(runs[0])
    assert math.isnan(found[0])  # the first task starts from noise
    assert found[1] == pytest.approx(0.25)  # (1 * 100 + 0 * 300) / 400
    assert math.isnan(found[2])  # not recorded
    assert "drcl 25.0 after task 2" in movement.describe(runs)
