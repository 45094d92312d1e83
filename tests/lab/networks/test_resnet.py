"""ResNet-18: parameter counts of the literature, stems for small and large images, the reduced form."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from drcl.lab import networks
from drcl.lab.networks import count_parameters
from drcl.lab.networks.resnet import Block


@pytest.mark.parametrize(
    ("trunk", "expected"),
    [
        (networks.ResNet18((3, 32, 32)), 11_168_832),
        (networks.ReducedResNet18((3, 32, 32)), 1_093_140),
        # The 7x7 stem instead of the 3x3 one
        (networks.ResNet18((3, 64, 64)), 11_168_832 + 64 * 3 * (49 - 9)),
    ],
    ids=["resnet", "reduced", "resnet64"],
)
def test_parameter_counts(trunk, expected):
    assert count_parameters(trunk) == expected


def test_resnet_stem_follows_the_image_size():
    small, large = networks.ResNet18((3, 32, 32), filters=4), networks.ResNet18((3, 64, 64), filters=4)
    assert (small.stem, large.stem) == ("small", "standard")
    assert small.conv1.kernel_size == (3, 3)
    assert isinstance(small.pool1, nn.Identity)
    assert large.conv1.kernel_size == (7, 7)
    assert networks.ResNet18((3, 64, 64), filters=4, stem="small").conv1.stride == (1, 1)
    # 32 -> 32, 16, 8, 4 through the stages; 64 -> 16, 16, 8, 4, 2
    norms = {"norm": "group"}
    maps = networks.ResNet18((3, 32, 32), filters=4, **norms)
    assert maps.stages(maps.conv1(torch.zeros(1, 3, 32, 32))).shape == (1, 32, 4, 4)
    assert networks.ReducedResNet18((3, 32, 32), pool=2).out_features == 640


def test_a_block_adds_its_input():
    """With the second convolution at zero and group norms, what is left is the rectified input."""
    block = Block(4, 4, 1, "group", 1)
    nn.init.zeros_(block.conv2.weight)
    x = torch.randn(2, 4, 5, 5)
    assert torch.equal(block(x), x.clamp(min=0))
    assert isinstance(block.shortcut, nn.Identity)
    assert Block(4, 8, 2, "group", 1)(x).shape == (2, 8, 3, 3)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"norm": None}, "norm=None"),
        ({"stem": "big"}, "stem='big'"),
        ({"filters": 0}, "filters=0"),
        ({"pool": 0}, "pool=0"),
    ],
)
def test_bad_arguments_are_named(wrong, message):
    with pytest.raises(ValueError, match=message):
        networks.ResNet18((3, 32, 32), **wrong)
