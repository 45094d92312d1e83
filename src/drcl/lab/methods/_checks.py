"""What a method supports, as data, and the error sentences for everything else: values that make no sense, and
networks, scenarios and optimizers that it does not support. Each names the method, what is wrong and the remedy."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from drcl.lab.networks import Network
from drcl.lab.networks.norms import FrozenBatchNorm

NORMS = (_BatchNorm, nn.GroupNorm, nn.LayerNorm)


@dataclass(frozen=True)
class Abilities:
    """What a method needs and supports. `refuse` enforces it, and `drcl list methods` shows it."""

    task_ids: bool = False  # it must know the task at evaluation
    task_ends: bool = True  # it needs to know when a task ends
    old_data: Literal["none", "some", "all"] = "none"  # how many examples of earlier tasks it keeps or replays
    passes: int = 1  # how often it trains on each task
    norms: Literal["any", "unshared", "none"] = "any"  # norm layers it supports; unshared: separate statistics per task
    branches: bool = True  # whether it supports networks that are not a chain of layers, such as residual ones
    optimizer: Literal["any", "sgd", "own"] = "any"  # "own": it makes its own steps and ignores the run's optimizer
    weight_decay: bool = True

    def words(self) -> dict[str, str]:
        """One cell for each column of a table of methods."""
        word = {True: "yes", False: "no"}
        return {
            "task ids": word[self.task_ids],
            "task ends": word[self.task_ends],
            "old data": self.old_data,
            "passes": str(self.passes),
            "norms": self.norms,
            "residual": word[self.branches],
            "optimizer": self.optimizer,
            "decay": word[self.weight_decay],
        }


def refuse(
    method: str, abilities: Abilities, model: Network, *, scenario: str, optimizer: str, weight_decay: float
) -> None:
    """Raise ``ValueError`` if a run asks a method for something it does not support."""
    if abilities.task_ids and scenario != "task":
        raise ValueError(
            f"{method}: this method must be told the task when it answers, and a {scenario}-incremental "
            'stream hides it: use scenario="task"'
        )
    # Weight decay moves weights even where the gradient is zero.
    if weight_decay and not abilities.weight_decay:
        raise ValueError(
            f"{method}: weight_decay={weight_decay} would move the weights this method holds still: set it to 0"
        )
    # Momentum does not break the projection: with a fresh buffer per task it is a sum of edited gradients, and
    # so keeps whatever linear property they share.
    if optimizer != "sgd" and abilities.optimizer == "sgd":
        raise ValueError(
            f"{method}: optimizer={optimizer!r} rescales a gradient, entry by entry, after it was edited, "
            'which undoes the edit: use optimizer="sgd"'
        )
    if abilities.norms == "none":
        _no_norms(method, model)
    if abilities.norms == "unshared":
        _no_shared_statistics(method, model)
    if not abilities.branches:
        chain(method, model)


def _no_norms(method: str, model: Network) -> None:
    for name, layer in model.named_modules():
        if isinstance(layer, NORMS):
            raise ValueError(
                f"{method}: {name} is a {type(layer).__name__}, for which this method has no rule: "
                "use a network without norm layers, such as model=alexnet, model=cnn or model=mlp"
            )


def _no_shared_statistics(method: str, model: Network) -> None:
    """Refuse running statistics that every task overwrites: they change old answers unnoticed by the method."""
    for name, layer in model.named_modules():
        if isinstance(layer, _BatchNorm) and layer.track_running_stats and not isinstance(layer, FrozenBatchNorm):
            raise ValueError(
                f"{method}: the statistics of {name} are overwritten by every task, which no rule of this method can "
                'prevent: build the network with norm="per-task", "frozen", "batch" or "group", or none'
            )


def chain(method: str, model: Network) -> nn.Sequential:
    """The trunk as a plain chain of layers; with branches, "the layer before" would have no meaning."""
    trunk = model.trunk
    leaves = isinstance(trunk, nn.Sequential) and not any(list(part.children()) for part in trunk.children())
    if not isinstance(trunk, nn.Sequential) or not leaves:
        raise ValueError(
            f"{method}: a {type(trunk).__name__} is not a plain chain of layers (residual additions have no rule in "
            "this method): use model=alexnet, model=cnn, model=upgd-cnn or model=mlp"
        )
    return trunk


# ---- values of options


def positive(method: str, **values: float) -> None:
    """Refuse a value that is not a finite number above 0."""
    for key, value in values.items():
        if not 0 < value < inf:
            raise ValueError(f"{method}: {key}={value}: give a finite number above 0")


def not_negative(method: str, **values: float) -> None:
    """Refuse a value that is not a finite number of at least 0."""
    for key, value in values.items():
        if not 0 <= value < inf:
            raise ValueError(f"{method}: {key}={value}: give a finite number of at least 0")


def decay(method: str, **values: float) -> None:
    """Refuse a value that is not the rate of an exponential trace."""
    for key, value in values.items():
        if not 0 <= value < 1:
            raise ValueError(f"{method}: {key}={value}: give a number from 0 to below 1")


def share(method: str, **values: float) -> None:
    """Refuse a value that is not a share."""
    for key, value in values.items():
        if not 0 <= value <= 1:
            raise ValueError(f"{method}: {key}={value}: give a share from 0 to 1")


def at_least_one(method: str, **values: int) -> None:
    """Refuse a count below 1."""
    for key, value in values.items():
        if value < 1:
            raise ValueError(f"{method}: {key}={value}: give a whole number of at least 1")


def at_least_one_or_none(method: str, **values: int | None) -> None:
    """Refuse a count below 1 where an option may also be none."""
    for key, value in values.items():
        if value is not None and value < 1:
            raise ValueError(f"{method}: {key}={value}: give a whole number of at least 1, or none")


def at_least(method: str, name: str, value: float, low: float, remedy: str) -> None:
    """Refuse a value below `low`."""
    if not value >= low:
        raise ValueError(f"{method}: {name}={value} must be at least {low}: {remedy}")


def inside(method: str, name: str, value: float, low: float, high: float, remedy: str) -> None:
    """Refuse a value outside the open interval (low, high)."""
    if not low < value < high:
        raise ValueError(f"{method}: {name}={value} must lie between {low} and {high}, both excluded: {remedy}")


def adam_lr(method: str, rate: float | None) -> None:
    """Refuse an impossible learning rate of Adam."""
    if rate is not None and not rate > 0:
        raise ValueError(f"{method}: adam_lr={rate} must be above 0: give 0.001, or none for the run's own optimizer")
