"""Running statistics: what norm layers remember of their data, and what happens to it when tasks change.

BatchNorm, SyncBatchNorm and InstanceNorm (with ``track_running_stats``) normalise by the batch during training and by
running means and variances in evaluation. These statistics are not parameters: no gradient moves them and no prox holds
them. But every task overwrites them, and that changes what the model computes for the old tasks.

    ============ ===================================================================================================
    norms        what happens
    ============ ===================================================================================================
    "averaged"   The default. The statistics are a mean over tasks in which the first one counts nine times. From the
                 second task on a layer normalises, also in training, by a point between the kept statistics and those
                 of the batch: (1 - s) kept + s batch with s = 1/10, 1/11, 1/12, ... That is a proximal step. What the
                 model computes for the old tasks hardly changes, and training stays as stable as with the batch alone:
                 no channel's deviation exceeds sqrt(1/s).
    "frozen"     s = 0: the statistics stay those of the first task, also in training. A layer is one fixed map for all
                 tasks, and nothing bounds its outputs: a learning rate that suits BatchNorm may be too large.
    "per-task"   Every task keeps its own statistics, and ``deployed(task=...)`` puts them into the model. You must know
                 to which task an input belongs.
    "shared"     Nothing: every task overwrites the statistics.
    ============ ===================================================================================================

The optimizer learns from ``consolidate`` and ``protect`` which model it trains; you need not call anything else. An
optimizer that resumes from a ``state_dict`` finds the layers when the model is called for the first time. docs/norms.md
has the measurements.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.nn.functional import all_reduce
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.modules.module import register_module_forward_pre_hook

from drcl.anchor import Anchor, AnchorError, own_buffers, unwrapped

if TYPE_CHECKING:
    from drcl.optimizer import DRCL

POLICIES = ("averaged", "frozen", "per-task", "shared")
DEFAULT = "averaged"
FIRST = 9  # in the mean over tasks, the first task counts for this many
_SAID = {
    "averaged": "become a mean over tasks; from the second task on the layers normalise by it in training too",
    "frozen": "stay those of the first task; the layers normalise by them in all later tasks, also in training",
    "per-task": "are kept separately for every task: opt.deployed(task=...) puts them into the model",
    "shared": "are overwritten by every task",
}


# ---- one layer


class Frozen:
    """A norm layer's ``train`` method while its statistics are frozen: the layer stays in evaluation mode.

    It is an object and not a function, so that a copy of the model gets its own. It works through the layer's mode
    because compiled code checks that too.
    """

    def __init__(self, layer: nn.Module) -> None:
        self.layer, self.asked = layer, layer.training
        layer.training = False

    def __call__(self, mode: bool = True) -> nn.Module:
        self.asked = mode
        return self.layer


class Averaged:
    """A norm layer's ``forward`` method while its statistics are averaged over tasks."""

    def __init__(self, layer: nn.Module, mean: Tensor, var: Tensor, share: float) -> None:
        self.layer, self.share = layer, share
        self.mean, self.var = mean.detach().clone(), var.detach().clone()

    def __call__(self, input: Tensor) -> Tensor:
        if not self.layer.training:
            return type(self.layer).forward(self.layer, input)
        return between(self.layer, input, self.mean, self.var, self.share)


def is_frozen(layer: nn.Module) -> bool:
    """Whether the layer was given to ``freeze``."""
    return isinstance(layer.__dict__.get("train"), Frozen)


def freeze(layer: nn.Module) -> None:
    """From now on the layer normalises by its running statistics in every mode, and does not change them."""
    if not is_frozen(layer):
        release(layer)
        layer.__dict__["train"] = Frozen(layer)
    layer.training = False


def hold(layer: nn.Module, mean: Tensor, var: Tensor, share: float) -> None:
    """From now on, in training, the layer normalises by a point between these statistics and the batch's."""
    if not isinstance(layer, _NormBase):
        freeze(layer)  # an unknown kind of layer: we cannot know how it normalises
        return
    release(layer)
    layer.__dict__["forward"] = Averaged(layer, mean, var, share)
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()  # compiled code does not notice that a layer computes something else now


def release(layer: nn.Module) -> None:
    """Undo ``freeze`` and ``hold``; the layer gets the mode that was last asked for."""
    if is_frozen(layer):
        layer.training = layer.__dict__.pop("train").asked
    if isinstance(layer.__dict__.get("forward"), Averaged):
        del layer.__dict__["forward"]


def share_of(tasks: int) -> float:
    """The share of the next task in the mean over tasks, where the first task counts for FIRST tasks."""
    return 1 / (FIRST + tasks)


def between(layer: Any, input: Tensor, mean: Tensor, var: Tensor, share: float) -> Tensor:
    """Normalise by (1 - share) * these statistics + share * the batch's, and update the running statistics.

    This is the proximal step: the minimiser of share |m - m_batch|^2 + (1 - share) |m - m_kept|^2, for the mean and for
    the variance. As in BatchNorm, the gradient flows through the statistics of the batch.
    """
    layer._check_input_dim(input)
    single = isinstance(layer, _InstanceNorm)
    alone = single and input.dim() == layer._get_no_batch_dim()
    x = input[None] if alone else input
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    dims = [d for d in range(x.dim()) if d > 1 or (d == 0 and not single)]
    own_mean, own_var, count = _moments(layer, wide, dims)
    kept_mean, kept_var = mean.to(own_mean), var.to(own_var)
    shape = [-1 if single else 1, x.shape[1], *[1] * (x.dim() - 2)]
    m, v = torch.lerp(kept_mean, own_mean, share), torch.lerp(kept_var, own_var, share)
    with torch.no_grad():
        unbiased = torch.lerp(kept_var, own_var * count / max(count - 1, 1), share)
        _follow(layer, m.mean(0) if single else m, unbiased.mean(0) if single else unbiased)
    scale = (v + layer.eps).rsqrt()
    if layer.weight is not None:
        scale = scale * layer.weight
    shift = -m * scale if layer.bias is None else layer.bias - m * scale
    y = (wide * scale.view(shape) + shift.view(shape)).to(input.dtype)
    return y[0] if alone else y


def _moments(layer: nn.Module, x: Tensor, dims: list[int]) -> tuple[Tensor, Tensor, int]:
    """Mean, variance and number of values of the batch; over all processes in a SyncBatchNorm."""
    var, mean = torch.var_mean(x, dims, correction=0)
    count = x.numel() // max(mean.numel(), 1)
    if not isinstance(layer, nn.SyncBatchNorm) or not dist.is_initialized():
        return mean, var, count
    group = layer.process_group or dist.group.WORLD
    sums = torch.cat([mean * count, (var + mean.square()) * count, mean.new_tensor([count])])
    total = all_reduce(sums, group=group)
    mean, square = (total[:-1] / total[-1]).chunk(2)
    return mean, (square - mean.square()).clamp(min=0), int(total[-1])


def _follow(layer: Any, mean: Tensor, var: Tensor) -> None:
    """Update the running statistics as any norm layer does."""
    if layer.num_batches_tracked is not None:
        layer.num_batches_tracked.add_(1)
    factor = 1 / float(layer.num_batches_tracked) if layer.momentum is None else layer.momentum
    layer.running_mean.lerp_(mean.to(layer.running_mean), factor)
    layer.running_var.lerp_(var.to(layer.running_var), factor)


# ---- all layers of a model


def layers_with_statistics(model: nn.Module) -> dict[str, nn.Module]:
    """The layers that keep running statistics, by their plain names."""
    return {
        name: layer
        for name, layer in unwrapped(model, dict(model.named_modules())).items()
        if layer._buffers.get("running_mean") is not None and getattr(layer, "track_running_stats", True)
    }


def statistics(layers: Mapping[str, nn.Module]) -> dict[str, Tensor]:
    """The statistics of these layers, under their names in the model."""
    return {
        f"{name}.{key}" if name else key: buffer
        for name, layer in layers.items()
        for key, buffer in layer._buffers.items()
        if buffer is not None and key not in layer._non_persistent_buffers_set
    }


def tell(optimizer: DRCL, model: nn.Module) -> None:
    """Warn once what happens to running statistics, unless the user has chosen a policy."""
    layers, progress = layers_with_statistics(model), optimizer.progress
    if layers and not progress.normed and optimizer.solver.says_norms:
        policy = optimizer.solver.norms
        warnings.warn(
            f"drcl: the running statistics of {len(layers)} norm layers ({next(iter(layers))!r}, ...) {_SAID[policy]}; "
            f"pass norms={policy!r} to silence this warning, or another policy of drcl.norms",
            stacklevel=2,
        )


def start_task(optimizer: DRCL, model: nn.Module) -> None:
    """At the end of a task, when its statistics are final: note which layers of the model have them."""
    progress, layers = optimizer.progress, layers_with_statistics(model)
    progress.normed, progress.norm_layers = list(layers), layers


def begin(optimizer: DRCL) -> None:
    """After a task was counted: apply the policy to the layers for the next task."""
    _apply(optimizer)


def keep_task(optimizer: DRCL) -> None:
    """Add the statistics of the task that has just ended to those of the tasks before."""
    progress = optimizer.progress
    if optimizer.solver.norms != "per-task":
        return
    kept = dict(progress.statistics)
    for name, buffer in statistics(progress.norm_layers).items():
        row = buffer.detach().clone()[None]
        # A layer that was added later has no earlier statistics: use these for the earlier tasks too.
        rows = kept.get(name, row.expand(progress.tasks, *buffer.shape))
        kept[name] = torch.cat([rows.to(row.device), row])
    progress.statistics = kept


def of_anchor(optimizer: DRCL, anchor: Anchor) -> dict[str, Tensor]:
    """The statistics of each task in an anchor; empty unless the policy is "per-task"."""
    tasks = max(1, int(anchor.provenance.get("tasks", 1)))
    if optimizer.solver.norms != "per-task":
        return {}
    for name, rows in anchor.statistics.items():
        if len(rows) != tasks:
            raise AnchorError(f"the anchor has {name!r} for {len(rows)} tasks of {tasks}; make the anchor again")
    return {name: rows.clone() for name, rows in anchor.statistics.items()}


@contextlib.contextmanager
def of_task(optimizer: DRCL, task: int | None) -> Iterator[None]:
    """Inside, the layers hold the statistics of this task (counted from 0), if every task keeps its own."""
    progress = optimizer.progress
    whole = isinstance(task, int) and not isinstance(task, bool)
    if task is not None and (not whole or not 0 <= task <= optimizer.tasks):
        raise ValueError(
            f"task={task!r} must be the number of a task, from 0 for the first to {optimizer.tasks} for the one in "
            "training"
        )
    if task is None or task == optimizer.tasks or not progress.statistics:
        yield
        return
    refuse_lost(optimizer)
    own = statistics(progress.norm_layers)
    chosen = {name: (own[name], rows[task]) for name, rows in progress.statistics.items() if name in own}
    before = [(buffer, buffer.clone()) for buffer, _ in chosen.values()]
    with torch.no_grad():
        for buffer, row in chosen.values():
            buffer.copy_(row)
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, old in before:
                buffer.copy_(old)


def resume(optimizer: DRCL, before: Mapping[str, nn.Module]) -> None:
    """After a state was loaded: apply the policy to the layers known `before`, and look for the others.

    A state dict does not know the model's layers; they are found when the model is called for the first time.
    """
    progress = optimizer.progress
    for name, layer in before.items():
        if name not in progress.normed and optimizer.solver.norms != "shared":
            release(layer)
    progress.norm_layers = {name: before[name] for name in progress.normed if name in before}
    _apply(optimizer)
    if lost(optimizer):
        _Search(optimizer)


def lost(optimizer: DRCL) -> list[str]:
    """Layers that a loaded state names and that have not been found yet."""
    if optimizer.solver.norms == "shared":
        return []
    return [name for name in optimizer.progress.normed if name not in optimizer.progress.norm_layers]


def refuse_lost(optimizer: DRCL) -> None:
    """Raise if layers of a loaded state have not been found: they would train without their policy."""
    names = lost(optimizer)
    if names:
        raise RuntimeError(
            f"norms={optimizer.solver.norms!r}: the loaded state holds the running statistics of {names[0]!r}, "
            "but the model has not been called since: call the whole model once, for instance model(inputs)"
        )


def _apply(optimizer: DRCL, names: Iterable[str] | None = None) -> None:
    policy, kept = optimizer.solver.norms, optimizer.progress.buffers
    if policy == "shared":
        return  # leave alone whatever the user did to a layer
    for name, layer in optimizer.progress.norm_layers.items():
        if names is not None and name not in names:
            continue
        if policy == "averaged" and optimizer.tasks:
            mean, var = (kept[f"{name}.{key}" if name else key] for key in ("running_mean", "running_var"))
            hold(layer, mean, var, share_of(optimizer.tasks))
        elif policy == "frozen" and optimizer.tasks:
            freeze(layer)
        else:
            release(layer)


class _Search:
    """Looks at every module that is called until all lost layers are found; parameters in a module reveal its name."""

    def __init__(self, optimizer: DRCL) -> None:
        self.optimizer = weakref.ref(optimizer)
        self.handle = register_module_forward_pre_hook(self)

    def __call__(self, module: nn.Module, inputs: Any) -> None:
        optimizer = self.optimizer()
        missing = [] if optimizer is None else lost(optimizer)
        if optimizer is not None and missing:
            found = _inside(module, optimizer.progress.names, missing)
            optimizer.progress.norm_layers |= found
            _apply(optimizer, found)
            missing = lost(optimizer)
            if module in found.values():
                _again(module)
        if not missing:
            self.handle.remove()


def _again(layer: nn.Module) -> None:
    """Repeat the current call of a layer: torch had looked up its forward method before we replaced it."""
    before = [(b, b.clone()) for b in layer.buffers()]

    def redo(layer: nn.Module, inputs: Any, output: Any) -> Any:
        handle.remove()
        with torch.no_grad():
            for buffer, old in before:
                buffer.copy_(old)
        return layer.forward(*inputs)

    handle = layer.register_forward_hook(redo)


def _inside(module: nn.Module, names: Mapping[Tensor, str], missing: Iterable[str]) -> dict[str, nn.Module]:
    """Those of the missing layers that this module contains."""
    layers = layers_with_statistics(module)
    for local, parameter in unwrapped(module, dict(module.named_parameters())).items():
        name = names.get(parameter)
        if layers and name is not None and name.endswith(local):
            prefix = name.removesuffix(local)
            full = {(prefix + inner).rstrip("."): layer for inner, layer in layers.items()}
            return {name: full[name] for name in missing if name in full}
    return {}


def check(model: nn.Module, rows: Mapping[str, Tensor]) -> None:
    """Raise unless statistics of several tasks fit the model."""
    buffers = own_buffers(model)
    for name, kept in rows.items():
        if name not in buffers or kept.shape[1:] != buffers[name].shape:
            raise AnchorError(f"the statistics {name!r} of the anchor do not fit this model; use the anchor's model")
