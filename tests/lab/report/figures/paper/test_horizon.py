"""Figure of the paper: plasticity over a long stream."""

import json

import numpy as np
import pytest
from tests.lab.report.figures.paper.recorded import bare, long_lines, recorded, words

from drcl.lab.report.figures.paper import NotEnough, draw, horizon
from drcl.lab.runs.read import find


def test_accuracy_when_learned_and_the_length_of_a_step(tmp_path):
    runs = recorded(tmp_path)
    figure = draw("perm", runs)
    left, right = figure.axes
    assert len(long_lines(left)) == len(long_lines(right)) == 3
    np.testing.assert_allclose(long_lines(right)[0].get_ydata(), [0.1, 0.05, 0.1 / 3, 0.025, 0.02])
    (sgd, other) = [run.matrix.diagonal() for run in runs if run.method == "sgd"]
    drawn = [line.get_ydata() for line in long_lines(left)]
    assert any(np.allclose(line, 50 * (sgd + other)) for line in drawn)
    told = words(figure)
    for word in ("accuracy when learned, %", "mean length of a step", "task"):
        assert word in told
    assert "its steps from 0.1 to 0.02" in horizon.describe(runs)


def test_online_streams_show_online_accuracy(tmp_path):
    recorded(tmp_path, ("sgd",), seeds=1)
    (path,) = tmp_path.iterdir()
    result = json.loads((path / "result.json").read_text())
    result["per_task"]["online_accuracy"] = [0.1, 0.2, 0.3, 0.4, 0.5]
    (path / "result.json").write_text(json.dumps(result))
    figure = draw("perm", find([tmp_path]))
    np.testing.assert_allclose(long_lines(figure.axes[0])[0].get_ydata(), [10, 20, 30, 40, 50])
    assert "online accuracy, %" in words(figure)


def test_runs_without_step_lengths_are_refused(tmp_path):
    with pytest.raises(NotEnough, match=r"per_task\.step_norm"):
        draw("perm", bare(tmp_path))
