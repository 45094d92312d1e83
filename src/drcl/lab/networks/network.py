"""`Network`: a trunk, which all tasks share and a method protects, and heads, which stay free."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from drcl.lab.common import seeds
from drcl.lab.networks.heads import HeadKind, Heads
from drcl.lab.networks.norms import PerTaskBatchNorm, end_task, has_task_statistics, judging, select_task
from drcl.lab.networks.trunks import TRUNKS, check
from drcl.lab.streams import Stream, Task


def _crashes(module: nn.Module) -> bool:
    """Whether torch 2.13 writes beyond its memory: channels last, on a CPU without AVX-512, in the backward pass of a
    strided 1x1 convolution with fewer than eight input channels."""
    if not isinstance(module, nn.Conv2d):
        return False
    return module.kernel_size == (1, 1) and max(module.stride) > 1 and module.in_channels < 8


def channels_last(x: Tensor) -> Tensor:
    """`x` with its channels innermost. With one channel both layouts are the same in memory, and torch would choose the
    slower one for all layers; this view has the strides of the other."""
    if x.shape[1] > 1:
        return x.contiguous(memory_format=torch.channels_last)
    return x.contiguous().view(len(x), *x.shape[2:], 1).movedim(-1, 1)


class Network(nn.Module):
    """``network(x, head)`` returns the logits of that head; `head` may be left out if there is only one. `by_head`
    answers a batch in which every example has its own head.

    The number of the head also tells "per-task" norm layers which statistics to use. The learner calls
    `begin_task` and `end_task`, which update class masks and norm statistics. Without them a growing head
    gives no answers.
    """

    def __init__(self, trunk: nn.Module, heads: Heads) -> None:
        super().__init__()
        self.trunk, self.heads = trunk, heads
        self.keeps_tasks_apart = has_task_statistics(trunk)  # norm layers with separate statistics per task
        self._learning: set[int] = set()  # heads of the tasks in training
        self._channels_last = not any(_crashes(module) for module in trunk.modules())

    def forward(self, x: Tensor, head: int | None = None) -> Tensor:
        return self.heads(self.features(x, head), head)

    def features(self, x: Tensor, head: int | None = None) -> Tensor:
        """The features that the trunk gives to the heads, ``[B, heads.features]``."""
        if self.keeps_tasks_apart:
            select_task(self.trunk, self.heads.index(head))
        if self._channels_last and x.dim() == 4 and x.device.type == "cpu":  # convolutions are faster this way
            x = channels_last(x)
        return self.trunk(x)

    def by_head(self, x: Tensor, heads: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Which rows of a batch each head answers, and its logits for them, in the order of the heads.

        The trunk sees all rows together, unless its norm layers keep statistics for each task. Then the statistics of
        all other tasks are final: replayed examples are normalised by them, as in evaluation, and do not change them.
        A few examples would spoil the statistics, and a single one has none.
        """
        present = torch.unique(heads).tolist()
        rows = {head: (heads == head).nonzero().squeeze(1) for head in present}
        if not self.keeps_tasks_apart:
            together = self.features(x, present[0])
            return [(rows[head], self.heads(together[rows[head]], head)) for head in present]
        # The current task goes first, so that its dropout does not depend on what is replayed.
        found = {head: self(x[rows[head]], head) for head in present if head in self._learning}
        with judging(self.trunk, PerTaskBatchNorm):
            found |= {head: self(x[rows[head]], head) for head in present if head not in found}
        return [(rows[head], found[head]) for head in present]

    def begin_task(self, task: Task) -> None:
        """Before training on `task`, also when it is taken up again: its classes become visible in a growing head."""
        self.heads.see(task.labels)
        self._learning.add(task.head)

    def end_task(self, task: Task) -> None:
        """After training on `task`: norm statistics become final where the policy is "frozen" (the first one's) or
        "averaged"."""
        end_task(self.trunk)
        self._learning.discard(task.head)

    def groups(self) -> dict[str, dict[str, nn.Parameter]]:
        """Parameters by full name: "trunk" is what a method protects, "heads" what it leaves free."""
        found: dict[str, dict[str, nn.Parameter]] = {"trunk": {}, "heads": {}}
        for name, parameter in self.named_parameters():
            found["trunk" if name.startswith("trunk.") else "heads"][name] = parameter
        return found

    def head_parameters(self, head: int | None = None) -> dict[str, nn.Parameter]:
        """Parameters of one head, by full name."""
        prefix = f"heads.layers.{self.heads.index(head)}."
        return {name: p for name, p in self.named_parameters() if name.startswith(prefix)}


def build(spec: str | Mapping[str, Any], stream: Stream, seed: int = 0) -> Network:
    """A network for `stream`: `spec` is a trunk's name or a table ``{"kind": name, ...}`` with its arguments.

    Heads follow the stream's scenario. The weights depend on `seed` alone, separately for trunk and heads, and the
    caller's random state does not change.
    """
    options = {"kind": spec} if isinstance(spec, str) else dict(spec)
    kind: Any = options.pop("kind", None)
    if kind not in TRUNKS:
        raise ValueError(f"network kind={kind!r}: choose one of {', '.join(TRUNKS)}")
    heads: dict[str, HeadKind] = {"task": "task", "domain": "shared", "class": "growing"}
    check(kind, options)
    try:
        with seeds.seeded_torch(seed, "network", "trunk"):
            trunk = TRUNKS[kind](stream.shape, tasks=len(stream.heads), **options)
    except (TypeError, RuntimeError) as wrong:  # from a plugin, or for sizes that torch refuses
        told_options = ", ".join(f"model.{name}={value!r}" for name, value in options.items()) or "no options"
        raise ValueError(f"network {kind!r} cannot be made with {told_options}: {wrong}") from wrong
    told = stream.scenario == "task"
    if not told and has_task_statistics(trunk):
        raise ValueError(
            f'norm="per-task" needs to know the task, which a {stream.scenario}-incremental stream hides: '
            'choose norm="shared", "averaged", "frozen", "batch" or "group"'
        )
    with seeds.seeded_torch(seed, "network", "heads"):
        features = trunk.out_features
        assert isinstance(features, int)
        return Network(trunk, Heads(features, stream.heads, heads[stream.scenario]))


def count_parameters(module: nn.Module) -> int:
    """Number of trained weights."""
    return sum(parameter.numel() for parameter in module.parameters())
