"""The multilayer perceptron: its size, the order of its layers, its arguments."""

from __future__ import annotations

import pytest
import torch

from drcl.lab import networks
from drcl.lab.networks import count_parameters


@pytest.mark.parametrize(
    ("trunk", "expected"),
    [
        (networks.MLP((1, 28, 28), hidden=(300, 150)), 784 * 300 + 300 + 300 * 150 + 150),
        (networks.MLP((3, 4, 5), hidden=(7,), norm="group"), 60 * 7 + 7 + 2 * 7),
    ],
    ids=["two layers", "with a norm"],
)
def test_parameter_counts(trunk, expected):
    assert count_parameters(trunk) == expected


def test_order_of_layers():
    made = networks.MLP((1, 8, 8), hidden=(5, 4), dropout=0.2, norm="batch")
    assert [name for name, _ in made.named_children()] == [
        "flatten",
        *("fc1", "norm1", "relu1", "drop1"),
        *("fc2", "norm2", "relu2", "drop2"),
    ]
    assert made.out_features == 4
    assert made(torch.zeros(2, 1, 8, 8)).shape == (2, 4)


@pytest.mark.parametrize("hidden", [(), (0,), (5, -1)])
def test_bad_widths_are_refused(hidden):
    with pytest.raises(ValueError, match="hidden="):
        networks.MLP((1, 8, 8), hidden=hidden)
