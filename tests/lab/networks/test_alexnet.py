"""The AlexNet of the HAT paper and the one of GPM: parameter counts of the literature, widths, order of layers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from drcl.lab import networks
from drcl.lab.networks import count_parameters


@pytest.mark.parametrize(
    ("trunk", "expected"),
    [
        (networks.AlexNet((3, 32, 32)), 6_503_872),
        (networks.AlexNet((1, 28, 28)), 6_460_416),
        (networks.AlexNet((3, 64, 64)), 17_744_320),
        # 84 px: kernels 10, 8, 2; maps 75-37, 30-15, 14-7
        (
            networks.AlexNet((3, 84, 84)),
            (300 * 64 + 64)
            + (64 * 64 * 128 + 128)
            + (4 * 128 * 256 + 256)
            + (49 * 256 * 2048 + 2048)
            + (2048**2 + 2048),
        ),
        # No biases, and two affine parameters for each of the 64 + 128 + 256 + 2048 + 2048 units
        (networks.AlexNetGPM((3, 32, 32)), 6_503_872 - 4544 + 2 * 4544),
    ],
    ids=["hat32", "hat28", "hat64", "hat84", "gpm32"],
)
def test_parameter_counts(trunk, expected):
    assert count_parameters(trunk) == expected


def test_alexnet_width_dropout_and_order_of_layers():
    half = networks.AlexNet((3, 32, 32), width=0.5, conv_dropout=0.1, dropout=0.3)
    assert [layer.out_channels for layer in half.modules() if isinstance(layer, nn.Conv2d)] == [32, 64, 128]
    assert half.out_features == 1024
    assert [layer.p for layer in half.modules() if isinstance(layer, nn.Dropout)] == [0.1, 0.1, 0.1, 0.3, 0.3]
    gpm = networks.AlexNetGPM((3, 32, 32), width=0.1)
    kinds = [type(layer).__name__ for layer in gpm]
    assert kinds[:5] == ["Conv2d", "BatchNorm", "Dropout", "MaxPool2d", "ReLU"]
    assert all(layer.bias is None for layer in gpm.modules() if isinstance(layer, nn.Conv2d | nn.Linear))
    assert not list(gpm.buffers())
    with pytest.raises(ValueError, match="20 pixels"):
        networks.AlexNet((1, 8, 8))


@pytest.mark.parametrize("norm", [None, "batch"])
def test_relu_after_pooling_gives_the_bits_of_relu_before_dropout_and_pooling(norm):
    """The HAT paper's order, written out: loss and every gradient are the same."""
    torch.manual_seed(0)
    trunk = networks.AlexNet((3, 32, 32), width=0.1, norm=norm)
    layers = dict(trunk.named_children())
    theirs = []
    for word, number in [("conv", 1), ("conv", 2), ("conv", 3), ("fc", 1), ("fc", 2)]:
        parts = [f"{word}{number}", f"{word}_norm{number}", f"{word}_relu{number}", f"{word}_drop{number}"]
        theirs += [layers[part] for part in parts if part in layers]
        theirs += [layers[f"pool{number}"]] if word == "conv" else []
        theirs += [layers["flatten"]] if (word, number) == ("conv", 3) else []
    x = torch.randn(16, 3, 32, 32)
    found = []
    for network in (trunk, nn.Sequential(*theirs)):
        torch.manual_seed(1)
        loss = (network(x) ** 2).sum()
        found.append([loss, *torch.autograd.grad(loss, list(trunk.parameters()))])
    assert all(torch.equal(ours, other) for ours, other in zip(*found))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"width": 0.0}, "width=0.0"),
        ({"channels": (8, 8)}, "three convolutions"),
        ({"conv_dropout": (0.1, 0.2)}, "conv_dropout="),
    ],
)
def test_bad_arguments_are_named(wrong, message):
    with pytest.raises(ValueError, match=message):
        networks.AlexNet((3, 32, 32), **wrong)
