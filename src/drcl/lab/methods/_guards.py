"""What a method cannot do, refused with a sentence: networks, scenarios and optimizers outside its definition."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from drcl.lab.methods.base import Setting
from drcl.lab.networks import Network
from drcl.lab.networks.norms import FrozenBatchNorm

NORMS = (_BatchNorm, nn.GroupNorm, nn.LayerNorm)


def inside(method: str, name: str, value: float, low: float, high: float, remedy: str) -> None:
    """Refuse a value outside the open interval (low, high)."""
    if not low < value < high:
        raise ValueError(f"{method}: {name}={value} must lie between {low} and {high}, both excluded: {remedy}")


def at_least(method: str, name: str, value: float, low: float, remedy: str) -> None:
    if not value >= low:
        raise ValueError(f"{method}: {name}={value} must be at least {low}: {remedy}")


def no_shared_statistics(method: str, model: Network) -> None:
    """Running statistics that every task overwrites change old answers behind the method's back."""
    for name, layer in model.named_modules():
        if isinstance(layer, _BatchNorm) and layer.track_running_stats and not isinstance(layer, FrozenBatchNorm):
            raise ValueError(
                f"{method}: the statistics of {name} are overwritten by every task, which no rule of this method can "
                'prevent: build the network with norm="per-task", "frozen", "batch" or "group", or none'
            )


def no_norms(method: str, model: Network) -> None:
    for name, layer in model.named_modules():
        if isinstance(layer, NORMS):
            raise ValueError(
                f"{method}: {name} is a {type(layer).__name__}, for which this method has no rule: "
                "use a network without norm layers, such as model=alexnet, model=cnn or model=mlp"
            )


def chain(method: str, model: Network) -> nn.Sequential:
    """The trunk as a plain chain of layers; where branches meet, "the layer before" has no meaning."""
    trunk = model.trunk
    leaves = isinstance(trunk, nn.Sequential) and not any(list(part.children()) for part in trunk.children())
    if not isinstance(trunk, nn.Sequential) or not leaves:
        raise ValueError(
            f"{method}: a {type(trunk).__name__} is not a plain chain of layers (residual additions have no rule in "
            "this method): use model=alexnet, model=cnn, model=upgd-cnn or model=mlp"
        )
    return trunk


def task_ids(method: str, setting: Setting) -> None:
    if setting.scenario != "task":
        raise ValueError(
            f"{method}: this method must be told the task when it answers, and a {setting.scenario}-incremental "
            'stream hides it: use scenario="task"'
        )


def no_decay(method: str, setting: Setting) -> None:
    """Weight decay moves what a zero gradient leaves in place."""
    if setting.weight_decay:
        raise ValueError(
            f"{method}: weight_decay={setting.weight_decay} would move the weights this method holds still: set it to 0"
        )


def plain_sgd(method: str, setting: Setting) -> None:
    """Refuse what bends a step out of the gradient's direction. Momentum does not: a fresh buffer a task is a sum of
    edited gradients, and so keeps whatever linear property they share."""
    no_decay(method, setting)
    if setting.optimizer != "sgd":
        raise ValueError(
            f"{method}: optimizer={setting.optimizer!r} rescales a gradient, entry by entry, after it was edited, "
            'which undoes the edit: use optimizer="sgd"'
        )
