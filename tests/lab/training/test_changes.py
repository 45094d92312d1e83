"""Histograms of |change|: every weight is counted once, in the bin it belongs to."""

from __future__ import annotations

import numpy as np
import torch

from drcl.lab.training.changes import BINS, EDGES, histogram, told


def test_a_layer_counts_its_weight_and_bias_and_leaves_the_rest_out():
    before = {"trunk.fc.weight": torch.zeros(2, 3), "trunk.fc.bias": torch.zeros(2), "trunk.norm.weight": torch.ones(1)}
    weight = torch.tensor([[0.0, 1e-7, 1e-6], [-0.5, 20.0, 0.02]])
    after = {"trunk.fc.weight": weight, "trunk.fc.bias": torch.tensor([0.0, 0.5]), "trunk.norm.weight": torch.ones(1)}
    fc, norm = histogram(4, before, after)
    assert (fc.task, fc.layer, fc.weights, fc.unmoved) == (4, "fc", 8, 2)
    assert sum(fc.counts) == 6
    assert fc.counts[0] >= 1  # 1e-7 is below the first edge
    assert fc.counts[-1] == 1  # 20 is above the last
    half = int(np.searchsorted(EDGES, 0.5, side="right"))
    assert fc.counts[half] == 2  # the sign does not matter
    assert (norm.layer, norm.weights, norm.unmoved, sum(norm.counts)) == ("norm", 1, 1, 0)


def test_the_counts_are_numpys():
    rng = np.random.default_rng(0)
    change = 10.0 ** rng.uniform(-5.9, 0.9, 1000)
    (row,) = histogram(0, {"w": torch.zeros(1000, dtype=torch.float64)}, {"w": torch.from_numpy(change)})
    wanted, _ = np.histogram(change, bins=EDGES)
    assert row.counts == (0, *wanted.tolist(), 0)
    assert len(row.counts) == BINS


def test_a_long_stream_tells_of_some_tasks():
    assert [t for t in range(5) if told(t, 5)] == [0, 1, 2, 3, 4]
    chosen = [t for t in range(400) if told(t, 400)]
    assert chosen[:2] == [0, 8]
    assert chosen[-1] == 399
    assert len(chosen) <= 51
