"""Panels: lines over seeds, axes that can be read, one legend."""

import numpy as np
import pytest
from tests.lab.report.fake_runs import write_run
from tests.lab.report.figures.paper.recorded import recorded

from drcl.lab.report.figures import style
from drcl.lab.report.figures.paper import panel
from drcl.lab.runs.read import find


def test_a_line_is_the_mean_over_the_seeds_that_know(tmp_path):
    (g,) = style.drawable(recorded(tmp_path, ("sgd",)))
    values = {run.path: v for run, v in zip(g.finished, ([1.0, 2.0, np.nan], [3.0, np.nan, np.nan]))}
    mean, deviation = panel.over_seeds(g, lambda run: values[run.path])
    np.testing.assert_allclose(mean, [2.0, 2.0, np.nan])
    assert deviation[0] == pytest.approx(2**0.5)
    figure, ((ax,),) = panel.grid(1, 1)
    assert panel.lines(ax, [g], lambda run: values[run.path], style.looks([g]), scale=10) == 1
    np.testing.assert_allclose(ax.get_lines()[0].get_ydata(), [20.0, 20.0])
    assert panel.lines(ax, [g], lambda run: [np.nan] * 3, style.looks([g])) == 0
    assert len(figure.axes) == 1


@pytest.mark.parametrize(
    ("tasks", "most", "shown"),
    [(4, 10, "1 2 3 4"), (24, 6, "1 5 10 15 20"), (100, 10, "1 10 20 30 40 50 60 70 80 90 100"), (400, 8, None)],
)
def test_tasks_are_numbered_from_one_and_not_too_densely(tasks, most, shown):
    _, ((ax,),) = panel.grid(1, 1)
    panel.over_tasks(ax, tasks, most=most)
    found = [t.get_text() for t in ax.get_xticklabels()]
    assert len(found) <= most + 1
    if shown is not None:
        assert found == shown.split()
    assert [int(label) - 1 for label in found] == list(ax.get_xticks())


@pytest.mark.parametrize(("low", "high", "some"), [(0.3, 1.0, "0.5"), (1e-5, 1.0, "0.001"), (1.0, 1.5, "1.2")])
def test_logarithmic_axes_write_their_numbers_out(low, high, some):
    with style.styled():
        figure, ((ax,),) = panel.grid(1, 1)
        ax.plot([0, 1], [low, high])
        panel.log_scale(ax)
        figure.canvas.draw_idle()
        figure.draw_without_rendering()
    assert some in [t.get_text() for t in ax.get_yticklabels()]


def test_the_methods_of_the_paper_are_known_by_their_names(tmp_path):
    for method in ("drcl", "drcl-kronecker", "drclike", "ewc"):
        write_run(tmp_path, method)
    assert [g.method for g in style.drawable(find([tmp_path])) if panel.own(g)] == ["drcl-kronecker", "drcl"]


def test_the_last_known_value():
    assert panel.last([1.0, 2.0, float("nan")]) == 2.0
    assert np.isnan(panel.last([]))
