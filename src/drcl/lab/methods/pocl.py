"""POCL: Pareto-optimised continual learning. Earlier tasks are replayed, and their gradients are combined with weights
that harm none of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from drcl.lab.common.fields import option
from drcl.lab.methods import _checks, _memory
from drcl.lab.methods.base import Batch, Knob
from drcl.lab.methods.er import ER
from drcl.lab.streams import Task

Vector = dict[str, Tensor]  # one tensor per parameter, by name


@dataclass
class POCL(ER):
    """Wu, Wang, Zhao, Zheng, Wei, Huang, "Mitigating Catastrophic Forgetting in Online Continual Learning by Modeling
    Previous Task Interrelations via Pareto Optimization", ICML 2024 (PMLR 235:53892).

    In task n a step has the batch and `replay` remembered examples. L_j is the mean cross-entropy of those of task j
    (of the batch too for j = n), L that of all of them together:

        w_j = w - inner_lr grad L_j(w)                              a step that task j would take
        g_j = gradient of L(w_j)                                    what it does for all
        lam = argmin |sum_{j<n} lam_j g_j|^2,   lam >= 0, sum lam = 1
        step along  g_n + sum_{j<n} lam_j g_j

    With v = sum lam_j g_j the optimum has v . g_j >= |v|^2 for all j < n: no earlier task is stepped against. g_j is
    the gradient by w_j (first order); with `exact` by w, through the virtual step, which needs second derivatives. The
    minimum is found by Wolfe's method in finitely many steps. With inner_lr = 0 all g_j are equal and the step is twice
    that of experience replay. While no earlier task is remembered, steps are plain.

    Examples keep the number of their task; the memory is a reservoir, filled in the first epoch of a task. A step costs
    two backward passes for each earlier task in the draw. In the authors' code the gradients of one task are added to
    those of the next, lam is found on 3,210 of the coordinates, kept within [0.15, 0.85] for two tasks, and gradients
    are clamped; this implementation does none of that. Running statistics of norm layers see all examples once a step,
    as in ER.
    """

    name: ClassVar[str] = "pocl"
    about: ClassVar[str] = (
        "Pareto-optimised replay: combines earlier tasks' gradients so that none is harmed (ICML 2024)"
    )
    tunes: ClassVar[Knob | None] = Knob("inner_lr", 1e-3, 1.0)

    memory: int = option(1000, "number of remembered examples, over all tasks")
    replay: int | None = option(300, "remembered examples per step; none: as many as the batch has")
    inner_lr: float = option(0.03, "length of the trial step of each task")
    exact: bool = option(False, "differentiate through that step (second derivatives) instead of at its end")

    def check(self) -> None:
        super().check()
        _checks.not_negative(self.name, inner_lr=self.inner_lr)

    def before_task(self, task: Task) -> None:
        super().before_task(task)
        self.state.setdefault("head_of", {})[str(task.index)] = task.head

    # ---- a step

    def before_step(self, batch: Batch) -> Batch:
        # The memory's `head` column holds task numbers, because tasks may share a head.
        self._offered = Batch(batch.x, batch.y, self.at.task)
        self._earlier: list[Batch] = []
        drawn = _memory.draw(self.state["memory"], self.replay or len(batch), self.dice("replay"))
        if drawn is None:
            return batch
        parts = {int(task): self._of(drawn, int(task)) for task in torch.unique(drawn.heads())}
        own = parts.pop(self.at.task, None)
        if not parts:
            return batch
        self._earlier = list(parts.values())
        self._current = batch if own is None else batch.with_more(own)
        return self._current

    def _of(self, drawn: Batch, task: int) -> Batch:
        """The remembered examples of one task, with the head that answers them."""
        found = self.to_device(drawn.rows((drawn.heads() == task).nonzero().squeeze(1)))
        return Batch(found.x, found.y, self.state["head_of"][str(task)])

    def loss(self, batch: Batch) -> Tensor:
        """The loss of the current task: its gradient is that task's virtual step."""
        if not self._earlier:
            return super().loss(batch)
        return self.ask(batch)

    def after_backward(self) -> None:
        if not self._earlier:
            return
        logits, own = self.logits, _memory.trunk_and_heads(self.model, self.state["heads"])
        everything = self._current
        for part in self._earlier:
            everything = everything.with_more(part)
        with torch.enable_grad():
            old = [self.hypergradient(own, part, everything) for part in self._earlier]
            here = None if self.exact else {n: p.grad for n, p in own.items() if p.grad is not None}
            new = self.hypergradient(own, self._current, everything, here, statistics=True)
        share = min_norm(gram(old))
        with torch.no_grad():
            for name, p in own.items():
                joined = sum(float(k) * g[name] for k, g in zip(share, old) if name in g)
                p.grad = new[name] + joined if name in new else None
        self.logits = logits  # of the batch at w, not after a virtual step

    def hypergradient(
        self,
        own: Mapping[str, nn.Parameter],
        part: Batch,
        everything: Batch,
        inner: Vector | None = None,
        statistics: bool = False,
    ) -> Vector:
        """What a step on `part` does for the loss of `everything`: the gradient of that loss after the step. `inner` is
        the gradient of `part` where it is known already."""
        self.gradients += (1 if inner is None else 0) + 1 + self.exact
        if inner is None:
            inner = gradient(self.ask(part), own, create_graph=self.exact)
        moved = {n: p - self.inner_lr * inner[n] if n in inner else p for n, p in own.items()}
        return gradient(self.ask(everything, moved, statistics), own)

    def ask(self, batch: Batch, weights: Mapping[str, Tensor] | None = None, statistics: bool = False) -> Tensor:
        """The loss of a batch with other weights. Unless `statistics`, norm layers write theirs into a copy."""
        given: dict[str, Tensor] = {f"network.{name}": w for name, w in (weights or {}).items()}
        if not statistics:
            given |= {f"network.{name}": b.clone() for name, b in self.model.named_buffers()}
        return functional_call(_Asked(self), given, (batch,))


class _Asked(nn.Module):
    """The method's loss as a module, so that torch can put other weights into the network."""

    def __init__(self, method: POCL) -> None:
        super().__init__()
        self.method, self.network = method, method.model

    def forward(self, batch: Batch) -> Tensor:
        return ER.loss(self.method, batch)


def gradient(value: Tensor, own: Mapping[str, nn.Parameter], **how: Any) -> Vector:
    """Of a value by each parameter that it depends on."""
    found = torch.autograd.grad(value, list(own.values()), allow_unused=True, **how)
    return {name: g for name, g in zip(own, found) if g is not None}


def gram(vectors: Sequence[Vector]) -> np.ndarray:
    """Inner products, in double: over millions of weights a float32 sum is too coarse for an optimum."""
    found = torch.zeros(len(vectors), len(vectors), dtype=torch.float64)
    for name in {name: None for vector in vectors for name in vector}:
        having = [i for i, vector in enumerate(vectors) if name in vector]
        for pieces in zip(*(vectors[i][name].flatten().split(1 << 14) for i in having)):  # pieces fit a cache
            rows = torch.stack(pieces).double()
            found[np.ix_(having, having)] += (rows @ rows.T).cpu()
    return found.numpy()


def min_norm(products: np.ndarray) -> np.ndarray:
    """Weights of the shortest vector in the convex hull of some vectors, from their inner products.

    Wolfe's method ("Finding the nearest point in a polytope", 1976): a set of vectors grows by the one that lies
    furthest back along the shortest vector so far; the nearest point of the plane through the set is taken if it lies
    in its hull, and otherwise the set loses a vector where the way there leaves the hull.
    """
    count = len(products)
    largest = float(products.diagonal().max())
    if not largest > 0:
        return np.full(count, 1 / count)
    products = products / largest
    chosen = [int(products.diagonal().argmin())]
    weights = np.ones(1)
    for _ in range(100 * count):
        along = products[:, chosen] @ weights
        square = float(weights @ along[chosen])
        back = int(along.argmin())
        if along[back] >= square - 1e-12 or back in chosen:
            break
        chosen.append(back)
        weights = np.append(weights, 0.0)
        while True:
            # On the plane: products u = 1 up to scale, with 1 added to all products to keep the matrix regular.
            plane = np.linalg.lstsq(products[np.ix_(chosen, chosen)] + 1.0, np.ones(len(chosen)), rcond=None)[0]
            plane = plane / plane.sum()
            outside = plane <= 1e-14
            if not outside.any():
                weights = plane
                break
            way = weights[outside] / np.maximum(weights[outside] - plane[outside], 1e-300)
            weights = weights + min(1.0, float(way.min())) * (plane - weights)
            weights[np.flatnonzero(outside)[way.argmin()]] = 0.0
            stay = weights > 1e-14
            chosen, weights = [c for c, s in zip(chosen, stay) if s], weights[stay] / weights[stay].sum()
    found = np.zeros(count)
    found[chosen] = weights
    return found
