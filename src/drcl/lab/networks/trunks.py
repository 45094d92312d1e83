"""Trunks by name: the networks of this folder, and those of plugins."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from torch import nn

from drcl.lab.common.fields import convert, nearest
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
    """The names of the trunks that `build` knows."""
    return tuple(TRUNKS)


_GIVEN = ("self", "shape", "tasks")  # arguments that come from the stream


def check(kind: str, options: Mapping[str, Any]) -> None:
    """Check that this network has these options, and that their values have the right types."""
    trunk = TRUNKS[kind]
    parameters = inspect.signature(trunk).parameters
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        return  # only the network itself can check its arguments
    known = [name for name in parameters if name not in _GIVEN]
    try:
        hints = typing.get_type_hints(trunk.__init__)
    except (NameError, TypeError):  # a plugin's types may be unknown here
        hints = {}
    for name, value in options.items():
        if name not in known:
            what = nearest(name, known) if known else "it has none"
            raise TypeError(f"model.{name}: network {kind!r} has no option {name!r}: {what}")
        if name in hints:
            convert(f"model.{name}", value, hints[name])


def register(name: str) -> Callable[[Trunk], Trunk]:
    """Register your own class as a network: ``Trunk(shape, tasks=..., **arguments)``.

    `shape` is the ``(C, H, W)`` of an image, and `tasks` is the number of heads, for norm layers that differ between
    tasks. The network turns ``[B, C, H, W]`` into ``[B, out_features]`` and has an attribute `out_features`.
    Arguments with a default are options: ``-o model.kind=NAME -o model.width=64``.
    """

    def add(cls: Trunk) -> Trunk:
        if not (isinstance(cls, type) and issubclass(cls, nn.Module)):
            raise PluginError(f"network {name!r} is {cls!r}: decorate a class derived from torch.nn.Module")
        TRUNKS.register(name, cls, cls.__module__)
        return cls

    return add
