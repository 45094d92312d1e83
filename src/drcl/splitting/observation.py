"""Watches the two operators negotiate: what a proposal asked for, and what the proximal map let through.

Set ``optimizer.progress.observer = Observer()``, set ``armed`` for the steps to watch, and `take` the result. Watching
changes nothing in the computation, and steps that are not watched cost nothing extra.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from drcl.splitting.kernels import Step, Weight, displacement


@dataclass
class Negotiation:
    """One iteration, over all protected weights that had a gradient."""

    squared_proposed: float = 0.0
    squared_passed: float = 0.0
    squared_residual: float = 0.0
    weights: int = 0
    still: int = 0  # weights whose z did not change in any bit
    picked_proposed: dict[Tensor, Tensor] = field(default_factory=dict)
    picked_passed: dict[Tensor, Tensor] = field(default_factory=dict)

    @property
    def proposed(self) -> float:
        """|x - y|_2: how far the proposal wants to move."""
        return math.sqrt(self.squared_proposed)

    @property
    def passed(self) -> float:
        """|z' - z|_2: how far the deployed weights moved."""
        return math.sqrt(self.squared_passed)

    @property
    def residual(self) -> float:
        """|y' - y|_2: what is left to negotiate."""
        return math.sqrt(self.squared_residual)


@dataclass
class _Before:
    """A weight before its negotiation, and the tensor that holds z afterwards."""

    parameter: Tensor
    y: Tensor
    z: Tensor
    proposed: Tensor  # x - y
    after: Tensor | None  # None: without reflection the parameter is z itself


class Observer:
    """Watches negotiations while it is `armed`. For the positions in `picks`, into flattened parameters, it also keeps
    the single updates."""

    def __init__(self, picks: Mapping[Tensor, Tensor] | None = None) -> None:
        self.armed = False
        self.seen: list[Negotiation] = []  # one per iteration
        self.picks = dict(picks or {})
        self._groups: set[int] = set()

    def take(self) -> list[Negotiation]:
        """What was seen since the last call."""
        seen, self.seen, self._groups = self.seen, [], set()
        return seen

    @torch.no_grad()
    def offered(
        self, weights: Sequence[Weight], step: Step, arrived: Sequence[Tensor], starts: Mapping[Tensor, Tensor]
    ) -> list[_Before]:
        """Before: `weights` with gradients or displacements, and parameters that `arrived` at x from their `starts`."""
        found = []
        for w in weights:
            y = w.y.detach().clone()
            buffer = None if w.buffer is None else w.buffer.clone()  # it is advanced in place
            s = displacement(y, w.g, buffer, w.first, step)
            z = y if w.z is None else w.z.clone()
            found.append(_Before(w.y, y, z, -s, w.z))
        for p in arrived:
            y = starts[p]
            found.append(_Before(p, y, y, p.detach() - y, None))
        return found

    @torch.no_grad()
    def settled(self, group: Mapping[str, Any], before: Sequence[_Before]) -> None:
        """After: the parameters hold y', and their states z'."""
        if id(group) in self._groups or not self.seen:  # if a group comes again, the next iteration begins
            self._groups = set()
            self.seen.append(Negotiation())
        self._groups.add(id(group))
        found = self.seen[-1]
        for b in before:
            z = b.parameter.detach() if b.after is None else b.after
            passed = z - b.z
            found.squared_proposed += _squared(b.proposed)
            found.squared_passed += _squared(passed)
            found.squared_residual += _squared(b.parameter.detach() - b.y)
            found.weights += z.numel()
            found.still += int((z == b.z).sum())
            at = self.picks.get(b.parameter)
            if at is not None:
                found.picked_proposed[b.parameter] = b.proposed.reshape(-1)[at].double()
                found.picked_passed[b.parameter] = passed.reshape(-1)[at].double()


def _squared(t: Tensor) -> float:
    return float(torch.linalg.vector_norm(t, dtype=torch.float64)) ** 2
