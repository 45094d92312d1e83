"""What a normalisation layer remembers over tasks. This choice alone can decide how much a network seems
to forget, so it has a name, and every network takes it as an argument.

The policies of the library (`drcl.norms`); here the network follows them with every method:

- "shared": batch normalisation with one set of running statistics, which every task overwrites
- "averaged": a mean over tasks, in which the first counts nine times; used in training too from the second task on
- "frozen": running statistics of the first task, used unchanged, in training too, from the second task on
- "per-task": running statistics for each task, scale and shift shared; needs to be told the task

Layers without running statistics:

- "batch": each batch is normalised by its own statistics, also in evaluation
- "group": GroupNorm, which never looks at another example
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from drcl.norms import between, freeze, release, share_of

NormPolicy = Literal["shared", "averaged", "frozen", "per-task", "batch", "group"]


def make_norm(policy: NormPolicy, channels: int, tasks: int = 1, affine: bool = True) -> nn.Module:
    """A normalisation layer for `channels` features, flat or as maps."""
    if policy == "shared":
        return BatchNorm(channels, affine=affine)
    if policy == "batch":
        return BatchNorm(channels, affine=affine, track_running_stats=False)
    if policy == "averaged":
        return AveragedBatchNorm(channels, affine=affine)
    if policy == "frozen":
        return FrozenBatchNorm(channels, affine=affine)
    if policy == "per-task":
        return PerTaskBatchNorm(channels, tasks, affine=affine)
    if policy == "group":
        return nn.GroupNorm(math.gcd(32, channels), channels, affine=affine)
    raise ValueError(f"norm={policy!r}: choose one of {', '.join(get_args(NormPolicy))}, or None")


class BatchNorm(_BatchNorm):
    """Batch normalisation of ``[B, C]`` and ``[B, C, ...]`` alike."""

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"input has shape {tuple(input.shape)}: give [B, C] or [B, C, ...]")
        if self.training and input.numel() == input.shape[1]:
            raise ValueError(
                "a batch of one image has no mean and deviation to normalise by: choose a batch size that does not "
                "leave a single image at the end, or norm=group"
            )


class FrozenBatchNorm(BatchNorm):
    """Learns its statistics on the first task, and then applies them unchanged in every mode.

    Whether it is frozen is a buffer, so that it survives a checkpoint."""

    frozen: Tensor

    def __init__(self, channels: int, affine: bool = True) -> None:
        super().__init__(channels, affine=affine)
        self.register_buffer("frozen", torch.tensor(False))

    def end_task(self) -> None:
        self.frozen.fill_(True)
        freeze(self)

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        (freeze if self.frozen else release)(self)


class AveragedBatchNorm(BatchNorm):
    """Statistics that are a mean over tasks; the mean so far is a buffer, so that it survives a checkpoint."""

    kept_mean: Tensor
    kept_var: Tensor
    ended: Tensor

    def __init__(self, channels: int, affine: bool = True) -> None:
        super().__init__(channels, affine=affine)
        self.register_buffer("kept_mean", torch.zeros(channels))
        self.register_buffer("kept_var", torch.ones(channels))
        self.register_buffer("ended", torch.tensor(0))  # tasks

    @torch.no_grad()
    def end_task(self) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        self.kept_mean.copy_(self.running_mean)
        self.kept_var.copy_(self.running_var)
        self.ended.add_(1)

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or not self.ended:
            return super().forward(input)
        return between(self, input, self.kept_mean, self.kept_var, share_of(int(self.ended)))


class PerTaskBatchNorm(BatchNorm):
    """One row of running statistics per task; `task` says which row is read and written."""

    def __init__(self, channels: int, tasks: int, affine: bool = True) -> None:
        super().__init__(channels, affine=affine, track_running_stats=False)
        if tasks < 1:
            raise ValueError(f"tasks={tasks}: per-task statistics need at least one task")
        self.register_buffer("task_mean", torch.zeros(tasks, channels))
        self.register_buffer("task_var", torch.ones(tasks, channels))
        self.task = 0

    task_mean: Tensor
    task_var: Tensor

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        # Rows are views: batch_norm updates the running statistics of this task in place, and no others.
        return F.batch_norm(
            input,
            self.task_mean[self.task],
            self.task_var[self.task],
            self.weight,
            self.bias,
            training=self.training,
            momentum=self.momentum if self.momentum is not None else 0.1,
            eps=self.eps,
        )


def has_task_statistics(module: nn.Module) -> bool:
    """Whether some layer inside keeps statistics for each task."""
    return any(isinstance(layer, PerTaskBatchNorm) for layer in module.modules())


@contextmanager
def judging(module: nn.Module, kind: type[nn.Module] = nn.Module) -> Iterator[None]:
    """Evaluation mode for measurements during training: no dropout, and no norm statistics are written. With `kind`,
    only for layers of that kind."""
    modes = [(layer, layer.training) for layer in module.modules() if isinstance(layer, kind)]
    for layer, _ in modes:
        layer.training = False
    try:
        yield
    finally:
        for layer, training in modes:
            layer.training = training


@contextmanager
def by_batch(module: nn.Module) -> Iterator[None]:
    """Norm layers that train on batch statistics use them in every mode and write none. A single flat example, which
    has no statistics, is normalised as before. "frozen" and "averaged" layers stay as they are."""
    found = (layer for layer in module.modules() if isinstance(layer, BatchNorm))
    layers = [layer for layer in found if type(layer) in (BatchNorm, PerTaskBatchNorm)]

    def normalised(layer: BatchNorm, x: Tensor) -> Tensor:
        if x.numel() == x.shape[1]:
            return type(layer).forward(layer, x)
        return F.batch_norm(x, None, None, layer.weight, layer.bias, training=True, eps=layer.eps)

    for layer in layers:
        layer.forward = partial(normalised, layer)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def select_task(module: nn.Module, task: int) -> None:
    """Point all per-task layers inside `module` at the statistics of `task`."""
    for layer in module.modules():
        if isinstance(layer, PerTaskBatchNorm):
            if not 0 <= task < len(layer.task_mean):
                raise IndexError(f"task {task}: there are statistics for {len(layer.task_mean)} tasks")
            layer.task = task


def end_task(module: nn.Module) -> None:
    """Make the statistics of all "frozen" and "averaged" layers inside `module` final; called when a task ends."""
    for layer in module.modules():
        if isinstance(layer, FrozenBatchNorm | AveragedBatchNorm):
            layer.end_task()


@contextmanager
def settled(module: nn.Module, look: Callable[[], int]) -> Iterator[None]:
    """Inside, and in evaluation mode, "batch" layers use the mean statistics of the batches that `look` sends through
    them (it returns the number of images). Each image then has its own output and gradient."""
    layers = [layer for layer in module.modules() if type(layer) is BatchNorm and layer.running_mean is None]
    if not layers:
        yield
        return
    seen: dict[nn.Module, list[Tensor]] = {layer: [] for layer in layers}

    def note(layer: nn.Module, inputs: Any) -> None:
        (x,) = inputs
        moments = torch.var_mean(x, [d for d in range(x.dim()) if d != 1], correction=0)
        seen[layer].append(torch.stack(moments) * len(x))

    hooks = [layer.register_forward_pre_hook(note) for layer in layers]
    try:
        images = look()
    finally:
        for hook in hooks:
            hook.remove()
    try:
        for layer in layers:
            # Temporary: they are not part of the model's state, so they are in no anchor either.
            layer._non_persistent_buffers_set |= {"running_mean", "running_var"}
            layer.running_var, layer.running_mean = torch.stack(seen[layer]).sum(0) / images
        yield
    finally:
        for layer in layers:
            layer.running_var = layer.running_mean = None
