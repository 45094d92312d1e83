"""Figure of the paper: size of the updates per layer and task."""

import numpy as np
import pytest
from tests.lab.report.figures.paper.recorded import bare, recorded, words

from drcl.lab.report.figures import style
from drcl.lab.report.figures.paper import NotEnough, draw, updates
from drcl.lab.training.changes import BINS, EDGES
from drcl.lab.training.rows import ChangeRow


def test_shares_of_a_layer_are_told_by_the_bins_of_its_weights():
    counts = [0] * BINS
    counts[5], counts[0], counts[-1] = 50, 10, 10
    found = updates.sizes(ChangeRow(1, "fc1", 100, 30, tuple(counts)), 10)
    between = (EDGES[4] * EDGES[5]) ** 0.5  # the fifth bin lies between these
    np.testing.assert_allclose(found, [0, 0, 0, EDGES[0] / 2, *[between] * 5, EDGES[-1]])


def test_a_map_per_method_with_its_layers_from_the_second_task_on(tmp_path):
    runs = recorded(tmp_path)
    figure = draw("heat", runs)
    assert len(figure.axes) == 4  # three methods and the scale
    told = words(figure)
    assert all(word in told for word in ("fc1", "fc2", "task", "sgd", "ewc", "drcl", "|change|", "or less"))
    sgd = figure.axes[0]
    assert len(sgd.patches) == 2 * updates.SHARES * 4  # two layers, four tasks
    assert [t.get_text() for t in sgd.get_xticklabels()] == ["2", "3", "4", "5"]
    (group,) = [g for g in style.drawable(runs) if g.method == "drcl"]
    names, values = updates.changes(group)
    assert names == ["fc1", "fc2"]
    assert (values == 0).mean() == pytest.approx(10 / 12)  # 81 of 100 are unmoved
    assert "drcl leaves 83 percent unchanged" in updates.describe(runs)


def test_colours_go_from_the_largest_change_to_none():
    np.testing.assert_allclose(updates.depth(np.array([1.0, 0.1, 0.001, 1e-9, 0.0]), 1.0), [0, 1 / 3, 1, 1, 1])


def test_many_layers_become_a_picture(tmp_path):
    runs = recorded(tmp_path, ("sgd",), tasks=40, seeds=1)
    assert draw("heat", runs).axes[0].images


def test_runs_without_histograms_are_refused(tmp_path):
    with pytest.raises(NotEnough, match=r"with changes\.csv"):
        draw("heat", bare(tmp_path))
