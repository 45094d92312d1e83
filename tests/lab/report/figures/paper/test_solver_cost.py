"""Figure of the paper: L1 against L2, and the cost against SGD."""

import json

import numpy as np
import pytest
from tests.lab.report.fake_runs import write_run
from tests.lab.report.figures.paper.recorded import long_lines, record, recorded, words

from drcl.lab.report.figures import style
from drcl.lab.report.figures.paper import NotEnough, draw, solver_cost
from drcl.lab.runs.read import find


def solver_runs(root, iterations=3):
    for prox in ("l1", "l2"):
        path = write_run(root, "drcl", 0, tasks=4, options={"prox": prox}, name=prox, seconds=50.0)
        record(path, 4, 0.5, iterations=iterations)
        cost = json.loads((path / "cost.json").read_text())
        cost["gradient_evaluations"] = 3000
        (path / "cost.json").write_text(json.dumps(cost))
    path = write_run(root, "sgd", 0, tasks=4, seconds=20.0)
    record(path, 4, 0.0, method="sgd")
    cost = json.loads((path / "cost.json").read_text()) | {"gradient_evaluations": 2000}
    (path / "cost.json").write_text(json.dumps(cost))
    return find([root])


def test_three_panels_with_their_axes(tmp_path):
    runs = solver_runs(tmp_path)
    figure = draw("cost", runs)
    left, middle, right = figure.axes
    assert len(long_lines(left)) == 3
    np.testing.assert_allclose(long_lines(left)[0].get_ydata(), [90, 89, 88, 87])
    assert len(long_lines(middle)) == 2  # sgd splits nothing
    np.testing.assert_allclose(long_lines(middle)[0].get_ydata(), [1, 0.5, 0.25])
    np.testing.assert_allclose(long_lines(middle)[0].get_xdata(), [1, 2, 3])
    assert len(right.patches) == 9  # three methods, three parts
    told = words(figure)
    for word in ("accuracy after one epoch, %", "iteration", "residual, share of the first", "multiple of SGD's"):
        assert word in told
    assert "2.50" in told


def test_times_of_another_machine_have_no_bar(tmp_path):
    runs = solver_runs(tmp_path)
    path = next(run.path for run in runs if run.options("method_options").get("prox") == "l2")
    told = json.loads((path / "environment.json").read_text())
    told["machine"] = {**told.get("machine", {}), "processor": "another one"}
    (path / "environment.json").write_text(json.dumps(told))
    runs = find([tmp_path])
    left, _, right = draw("cost", runs).axes
    assert len(long_lines(left)) == 3
    assert len(right.patches) == 6
    assert solver_cost.describe(runs).count("times SGD's time") == 2


def test_the_parts_of_the_cost_by_hand(tmp_path):
    groups = {g.label: g for g in style.drawable(solver_runs(tmp_path))}
    found = solver_cost.parts(groups["drcl (prox=l1)"], groups["sgd"])
    # SGD: 19 s of training for 2000 gradients, 20 s in all. DRCL: 47.5 s of training, 2.5 s of importance.
    gradients = 3000 * 19 / 2000
    expected = {"gradients": gradients / 20, "proximal step": (47.5 - gradients) / 20, "importance": 2.5 / 20}
    assert found == pytest.approx(expected)
    assert sum(found.values()) == pytest.approx(2.5)


def test_with_one_iteration_a_step_the_residual_goes_along_the_steps(tmp_path):
    runs = solver_runs(tmp_path, iterations=1)
    figure = draw("cost", runs)
    line = long_lines(figure.axes[1])[0]
    np.testing.assert_allclose([line.get_ydata()[0], line.get_ydata()[-1]], [1, 5 / 25])  # 1/5 at first, 1/25 at last
    np.testing.assert_allclose(line.get_xdata()[-1], 100)
    assert "steps of a task, %" in words(figure)
    assert "takes 2.50 times SGD's time" in solver_cost.describe(runs)


def test_one_form_of_drcl_or_no_sgd_is_refused(tmp_path):
    with pytest.raises(NotEnough, match="cost needs finished runs of two forms of drcl"):
        draw("cost", recorded(tmp_path / "one"))
    solver_runs(tmp_path / "two")
    with pytest.raises(NotEnough, match="and of sgd on the same tasks"):
        draw("cost", [run for run in find([tmp_path / "two"]) if run.method != "sgd"])
