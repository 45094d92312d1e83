"""Trunks by name: ours in their order, others beside them. What each computes is tested in its own file."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from drcl.lab import benchmarks, networks
from drcl.lab.common.plugins import PluginError
from drcl.lab.networks import trunks


def test_every_trunk_of_ours_makes_the_features_it_promises():
    assert networks.names() == tuple(trunks.OURS)
    for name in networks.names():
        trunk = networks.TRUNKS[name]((3, 32, 32), tasks=2).eval()
        assert trunk(torch.zeros(2, 3, 32, 32)).shape == (2, trunk.out_features), name


@pytest.mark.usefixtures("unregistered")
def test_one_from_outside_is_built_with_its_arguments():
    @networks.register("wide")
    class Wide(nn.Sequential):
        def __init__(self, shape, width=7, tasks=1):
            super().__init__(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], width))
            self.out_features = width

    stream = benchmarks.get("digits-split").stream(seed=0)
    network = networks.build({"kind": "wide", "width": 5}, stream)
    assert isinstance(network.trunk, Wide)
    assert network.trunk[1].out_features == 5
    assert networks.names()[-1] == "wide"
    assert networks.TRUNKS.whose("wide") == Wide.__module__
    with pytest.raises(PluginError, match="network 'mlp': drcl has one of that name"):
        networks.register("mlp")(Wide)
