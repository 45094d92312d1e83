"""Trunks by name: the networks of this folder, and those of plugins."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torch import nn

from drcl.lab.common.plugins import PluginError
from drcl.lab.common.registry import Registry
from drcl.lab.networks.alexnet import AlexNet, AlexNetGPM
from drcl.lab.networks.cnn import SmallCNN, UPGDNet
from drcl.lab.networks.mlp import MLP
from drcl.lab.networks.resnet import ReducedResNet18, ResNet18

OURS: dict[str, type[nn.Module]] = {
    "mlp": MLP,
    "alexnet": AlexNet,
    "alexnet-gpm": AlexNetGPM,
    "resnet18": ResNet18,
    "resnet18-reduced": ReducedResNet18,
    "cnn": SmallCNN,
    "upgd-cnn": UPGDNet,
}
TRUNKS: Registry[type[nn.Module]] = Registry("network", lambda: OURS, "drcl.networks")
Trunk = TypeVar("Trunk", bound=type[nn.Module])


def names() -> tuple[str, ...]:
    """The trunks `build` knows."""
    return tuple(TRUNKS)


def register(name: str) -> Callable[[Trunk], Trunk]:
    """Make a class of your own a network: ``Trunk(shape, tasks=..., **arguments)``.

    `shape` is ``(C, H, W)`` of an image and `tasks` how many heads there will be, for norm layers that differ between
    tasks. It turns ``[B, C, H, W]`` into ``[B, out_features]`` and has that number as its attribute `out_features`.
    Arguments with a default are options: ``-o model.kind=NAME -o model.width=64``.
    """

    def add(cls: Trunk) -> Trunk:
        if not (isinstance(cls, type) and issubclass(cls, nn.Module)):
            raise PluginError(f"network {name!r} is {cls!r}: decorate a class derived from torch.nn.Module")
        TRUNKS.register(name, cls, cls.__module__)
        return cls

    return add
