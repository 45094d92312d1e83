"""Importance on several processes: either each process measures a share, or the first one measures for all.

On one process these are simply the estimators of `drcl.importance` and `drcl.directions`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from drcl import Fisher, Kronecker
from drcl.importance.base import History, Importance, Measured
from drcl.lab.common import parallel
from drcl.per_sample.plan import Forward


class Reduced(Importance):
    """An estimator whose samples are divided among the processes and whose result is their common mean.

    Random labels and signs must be drawn in one order, so each process makes that estimate completely; the mean then
    only ensures that all processes continue with the same bits.
    """

    def __init__(self, inner: Importance) -> None:
        self.inner = inner

    def estimate(
        self, model: nn.Module, batches: Any, parameters: dict[str, nn.Parameter], forward: Forward | None = None
    ) -> dict[str, Tensor]:
        here = parallel.world()
        if here.size == 1:
            return self.inner.estimate(model, batches, parameters, forward)
        batches = list(batches)
        whole = isinstance(self.inner, Fisher) and self.inner.labels in ("sampled", "signs", "outputs")
        mine = batches if whole else batches[here.rank :: here.size]
        count = sum(len(batch[0]) for batch in mine)
        if count:
            found = self.inner.estimate(model, mine, parameters, forward)
        else:
            found = {
                n: torch.zeros_like(p, dtype=torch.promote_types(p.dtype, torch.float32)) for n, p in parameters.items()
            }
        samples = float(parallel.total(torch.tensor(float(count), device=next(iter(found.values())).device)))
        return {name: parallel.total(value * (count / samples)) for name, value in found.items()}

    def describe(self) -> dict[str, Any]:
        return self.inner.describe()


class FromTheFirst(Kronecker):
    """Directions that the first process finds and all others take from it.

    If each process computed its own, they would differ: equal matrices have eigenvectors that agree only up to
    rounding.
    """

    def measure(
        self,
        model: nn.Module,
        batches: Any,
        parameters: dict[str, nn.Parameter],
        forward: Forward | None = None,
        history: History | None = None,
    ) -> Measured:
        here = parallel.world()
        if here.size == 1:
            return super().measure(model, batches, parameters, forward, history)
        found: list[Any] = [None]
        if here.rank == 0:
            try:
                measured = super().measure(model, batches, parameters, forward, history)
                importance = {n: t.cpu() for n, t in measured.importance.items()}
                bases = {n: b.cast(torch.empty(0), b.eigenvalues.dtype) for n, b in measured.bases.items()}
                found = [replace(measured, importance=importance, bases=bases)]
            except Exception as reason:  # the other processes wait for an answer, so send them the error
                found = [reason]
        dist.broadcast_object_list(found, 0)
        if isinstance(found[0], Exception):
            raise found[0]
        here_again = {n: t.to(parameters[n].device) for n, t in found[0].importance.items()}
        return replace(found[0], importance=here_again)
