"""The two small convolutional networks: sizes, and the order of their layers."""

from __future__ import annotations

import pytest
import torch

from drcl.lab import networks
from drcl.lab.networks import count_parameters


@pytest.mark.parametrize(
    ("trunk", "expected"),
    [
        # conv 6 and 16 of 5x5, then 400-120-84
        (networks.UPGDNet((3, 32, 32)), 456 + 2416 + 48_120 + 10_164),
        (
            networks.SmallCNN((1, 8, 8)),
            (9 * 32 + 32) + (9 * 32 * 64 + 64) + (9 * 64 * 64 + 64) + (64 * 128 + 128),
        ),
    ],
    ids=["upgd", "cnn"],
)
def test_parameter_counts(trunk, expected):
    assert count_parameters(trunk) == expected


def test_upgd_net_has_no_nonlinearity_between_convolutions():
    kinds = [type(layer).__name__ for layer in networks.UPGDNet((3, 32, 32))]
    assert kinds == [
        "Conv2d",
        "MaxPool2d",
        "Conv2d",
        "MaxPool2d",
        "Flatten",
        "Linear",
        "ReLU",
        "Linear",
        "ReLU",
    ]


def test_the_small_one_follows_its_arguments():
    made = networks.SmallCNN((3, 16, 16), channels=(4, 6), hidden=10, dropout=0.3, norm="group")
    kinds = [type(layer).__name__ for layer in made]
    block = ["Conv2d", "GroupNorm", "MaxPool2d", "ReLU"]
    assert kinds == [*block, *block, "Flatten", "Linear", "GroupNorm", "ReLU", "Dropout"]
    assert made.fc1.in_features == 6 * 4 * 4
    assert made(torch.zeros(2, 3, 16, 16)).shape == (2, made.out_features) == (2, 10)


def test_images_that_are_too_small_are_refused():
    with pytest.raises(ValueError, match="3 poolings need 8 pixels"):
        networks.SmallCNN((1, 7, 7))
    with pytest.raises(ValueError, match="need 16 pixels"):
        networks.UPGDNet((1, 15, 15))
