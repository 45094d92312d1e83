"""Figure: which share of each layer stayed where it was."""

import numpy as np
from tests.lab.report.fake_runs import R0, write_run
from tests.lab.report.figures.looking import texts

from drcl.lab.report.figures import drift
from drcl.lab.report.groups import group
from drcl.lab.runs import read


def test_drift_shows_layers_and_all_weights_from_the_second_task(tmp_path):
    path = write_run(tmp_path, "drcl", 0, R=R0)
    rows = ["0,a,100,0.0,1,1,1", "0,b,300,0.0,1,1,1", "1,a,100,0.2,1,1,1", "1,b,300,1.0,0,0,0"]
    head = "task,layer,weights,unmoved,mean_change,largest_change,relative_change"
    (path / "drift.csv").write_text("\n".join([head, *rows]) + "\n")
    runs = read.find([tmp_path])
    names, values = drift.shares(group(runs)[0])
    assert names == ["a", "b", "all weights"]
    np.testing.assert_allclose(values, [[0.2], [1.0], [0.8]])  # (20 + 300) / 400
    assert texts(drift.draw(runs)) == ["20", "100", "80"]


def test_a_map_of_nothing_but_zeros_is_not_drawn(tmp_path):
    write_run(tmp_path, "sgd", 0, R=R0)
    write_run(tmp_path, "drcl", 0, R=R0)
    runs = read.find([tmp_path])
    drawn, zeros = group(runs)
    assert drift.kept_any(drawn)
    assert not drift.kept_any(zeros)
    assert len(drift.draw(runs).axes) == 1
    assert texts(drift.draw([zeros])) == ["no drift was recorded, or every weight moved"]
