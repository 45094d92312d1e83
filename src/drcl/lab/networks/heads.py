"""The last, linear layers: one per task, one shared by all tasks, or one that grows with the classes seen so
far."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, cast, get_args

import torch
from torch import Tensor, nn

from drcl.lab.common import seeds

HeadKind = Literal["task", "shared", "growing"]


class Heads(nn.Module):
    """Linear heads on a trunk's features.

    - kind "task": head ``t`` answers task ``t`` (task-incremental) - kind "shared": head 0 answers
    everything (domain-incremental) - kind "growing": head 0 has an output for each class; outputs that no
    `see` has announced yet get the lowest finite logit, so that softmax, argmax and the loss ignore them
    and no gradient reaches them (class-incremental)
    """

    seen: Tensor

    def __init__(self, features: int, outputs: Sequence[int], kind: HeadKind = "task") -> None:
        super().__init__()
        if kind not in get_args(HeadKind):
            raise ValueError(f"kind={kind!r}: choose one of {', '.join(get_args(HeadKind))}")
        if not outputs or min(outputs) < 1:
            raise ValueError(f"outputs={list(outputs)}: give the number of outputs, at least 1, of each head")
        if kind != "task" and len(outputs) != 1:
            raise ValueError(f"outputs={list(outputs)}: kind={kind!r} has exactly one head")
        self.kind, self.features = kind, features
        self.layers = nn.ModuleList(nn.Linear(features, width) for width in outputs)
        if kind == "growing":
            self.register_buffer("seen", torch.zeros(outputs[0], dtype=torch.bool))

    def __len__(self) -> int:
        return len(self.layers)

    @property
    def outputs(self) -> tuple[int, ...]:
        return tuple(cast(nn.Linear, layer).out_features for layer in self.layers)

    def forward(self, features: Tensor, head: int | None = None) -> Tensor:
        logits = self.layers[self.index(head)](features)
        if self.kind != "growing":
            return logits
        # The lowest finite number and not -inf: 0 * -inf would turn a distillation loss into NaN.
        return logits.masked_fill(~self.seen, torch.finfo(logits.dtype).min)

    def index(self, head: int | None) -> int:
        """The head that `head` means; None is allowed only if there is a single head."""
        if head is None:
            if len(self.layers) > 1:
                raise ValueError(f"head=None: there are {len(self.layers)} heads, say which (task.head)")
            return 0
        if not 0 <= head < len(self.layers):
            raise IndexError(f"head={head}: there are heads 0..{len(self.layers) - 1}")
        return head

    def see(self, labels: Iterable[int]) -> None:
        """Announce the outputs of a new task; only a growing head takes note."""
        if self.kind != "growing":
            return
        wanted = list(labels)
        if wanted and not 0 <= min(wanted) <= max(wanted) < len(self.seen):
            raise ValueError(f"labels up to {max(wanted)}: the head has {len(self.seen)} outputs; grow it")
        self.seen[wanted] = True

    def grow(self, outputs: int, seed: int = 0) -> None:
        """Add a head of `outputs` (kind "task"), or that many outputs to the growing head. Old weights stay
        the same bit for bit. The parameter of a growing head is a new object, so the optimizer must be
        told."""
        if outputs < 1:
            raise ValueError(f"outputs={outputs}: grow by at least one")
        if self.kind == "shared":
            raise ValueError('kind="shared" does not grow: build the heads with kind="task" or "growing"')
        like = cast(nn.Linear, self.layers[0]).weight
        with seeds.seeded_torch(seed, "head", len(self.layers), sum(self.outputs)):
            fresh = nn.Linear(self.features, outputs).to(device=like.device, dtype=like.dtype)
        if self.kind == "task":
            self.layers.append(fresh)
            return
        old = cast(nn.Linear, self.layers[0])
        with torch.no_grad():
            fresh.weight = nn.Parameter(torch.cat([old.weight, fresh.weight]))
            fresh.bias = nn.Parameter(torch.cat([old.bias, fresh.bias]))
        fresh.out_features = old.out_features + outputs
        self.layers[0] = fresh
        self.seen = torch.cat([self.seen, self.seen.new_zeros(outputs)])
