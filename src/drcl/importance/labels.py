"""Derivatives of per-sample losses with respect to the output; a backward pass turns them into per-sample gradients.

Each cotangent takes one backward pass. Drawn labels, random signs and true labels need one. The exact expectation over
the labels needs one for every column of the covariance of their derivative, at every position of a sample.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor

from drcl.importance.likelihood import LIKELIHOODS, Family
from drcl.importance.outputs import Scored, Target, scored
from drcl.per_sample.draw import map_tensors, take, tensors
from drcl.per_sample.plan import Cotangents

__all__ = [
    "exact_cotangents",
    "loss_cotangents",
    "observed_cotangents",
    "output_cotangents",
    "sampled_cotangents",
    "signed_cotangents",
]


class Question:
    """An output, its target and the likelihood that connects them; None means softmax by default."""

    def __init__(
        self, output: Any, target: Any, length: int, likelihood: str | None = None, estimator: str = "Fisher"
    ) -> None:
        self.leaves, self.length, self.estimator = tensors(output), length, estimator
        self.family = LIKELIHOODS[likelihood or "softmax"]
        self.parts = scored(output, target, length, likelihood, estimator)

    def answered(self, function: Callable[[Scored, Tensor, slice], Tensor]) -> Cotangents:
        """One cotangent: `function` of each tensor's rows, zero for tensors without labels.

        Several tensors are processed sample by sample, so that random numbers do not depend on the batches.
        """
        rows = [part.rows() for part in self.parts]
        if len(self.parts) == 1:
            made = [function(self.parts[0], rows[0], slice(None))]
        else:
            by_sample = [
                [function(part, r[part.sample(i)], part.sample(i)) for part, r in zip(self.parts, rows)]
                for i in range(self.length)
            ]
            made = [torch.cat(column) for column in zip(*by_sample)]
        found = {part.index: part.back(v) for part, v in zip(self.parts, made)}
        return [[found[i] if i in found else torch.zeros_like(leaf) for i, leaf in enumerate(self.leaves)]]


def sampled_cotangents(
    output: Any,
    length: int,
    rng: np.random.Generator,
    target: Any = None,
    likelihood: str | None = None,
    estimator: str = "Fisher",
) -> Cotangents:
    """At labels drawn from the model's own likelihood."""
    asked = Question(output, target, length, likelihood, estimator)
    return asked.answered(lambda part, rows, _: asked.family.drawn(rows, rng))


def signed_cotangents(
    output: Any,
    length: int,
    rng: np.random.Generator,
    target: Any = None,
    likelihood: str | None = None,
    estimator: str = "Fisher",
) -> Cotangents:
    """v with E[v v^T] the covariance of the derivative at a drawn label.

    A label drawn from a confident model is nearly always the most likely one and has almost no gradient. v has the same
    expectation, but in every draw it has the size of what it estimates. With two classes it is exact.
    """
    asked = Question(output, target, length, likelihood, estimator)
    return asked.answered(lambda part, rows, _: asked.family.signed(rows, rng))


def output_cotangents(
    output: Any,
    length: int,
    rng: np.random.Generator,
    target: Any = None,
    likelihood: str | None = None,
    estimator: str = "Fisher",
) -> Cotangents:
    """v of length one that measures how far the output itself moves, independent of labels.

    Every number of the output gets a random sign, so that E[v v^T] is the identity, divided by the count of numbers and
    by the sample's positions. For a softmax the numbers are coordinates of the logits about their mean, one fewer than
    there are logits, because adding a constant to all logits changes nothing. A reflection that maps the first axis to
    the mean gives these coordinates.
    """
    asked = Question(output, target, length, likelihood, estimator)

    def signs(part: Scored, rows: Tensor, some: slice) -> Tensor:
        classes = rows.shape[1]
        numbers = classes - 1 if asked.family.name == "softmax" else classes
        drawn = torch.from_numpy(rng.integers(0, 2, (len(rows), numbers)) * 2.0 - 1.0).to(rows.device)
        if asked.family.name == "softmax":
            along = drawn.sum(1, keepdim=True) / classes**0.5
            drawn = torch.cat([along, drawn - along / (classes**0.5 - 1)], 1)
        counted = rows.new_ones(len(rows), dtype=torch.float64) if part.counted is None else part.counted[some].double()
        positions = counted.reshape(-1, part.positions).sum(1, keepdim=True).clamp(min=1)
        scale = (numbers * positions).expand(-1, part.positions).reshape(-1, 1)
        return (drawn / scale.sqrt()).to(rows.dtype)

    return asked.answered(signs)


def observed_cotangents(
    output: Any, target: Any, length: int, likelihood: str | None = None, estimator: str = "Fisher"
) -> Cotangents:
    """At the data's own labels."""
    asked = Question(output, target, length, likelihood, estimator)
    checked = {part.index: _checked_labels(part, asked.family, estimator) for part in asked.parts}
    return asked.answered(lambda part, rows, some: asked.family.observed(rows, checked[part.index][some]))


def _checked_labels(part: Scored, family: Family, estimator: str) -> Tensor:
    """One label per row, valid where the row counts and harmless where it does not."""
    labels, rows = part.labels, part.rows()
    if labels is None:
        raise ValueError("labels='empirical' needs labels, but the batch has none; use labels='sampled'")
    if family.name != "softmax" or labels.is_floating_point():
        if labels.numel() != rows.numel():
            raise ValueError(
                f"labels='empirical' needs one number for each of the output's {list(part.leaf.shape)}, got labels of "
                f"shape {list(labels.shape)}"
            )
        if family.name == "bernoulli" and bool(((labels < 0) | (labels > 1)).any()):
            raise ValueError("labels of likelihood='bernoulli' must lie between 0 (no) and 1 (yes)")
        return part.rows_of(labels) if labels.shape == part.leaf.shape else labels.reshape(rows.shape)
    if labels.shape != (len(rows),) or labels.dtype == torch.bool:
        wanted = [n for i, n in enumerate(part.leaf.shape) if i != part.axis]
        raise ValueError(
            f"labels must be whole numbers of shape {wanted}, got {labels.dtype} of shape {list(labels.shape)}; for "
            f"other targets use {estimator}(labels='empirical', loss=...)"
        )
    classes = rows.shape[1]
    outside = (labels < 0) | (labels >= classes)
    if part.counted is not None:
        outside &= part.counted
    if bool(outside.any()):
        raise ValueError(
            f"label {int(labels[outside][0])} is out of range: the model has {classes} classes, 0 to {classes - 1}"
        )
    return labels if part.counted is None else torch.where(part.counted, labels, 0)


def exact_cotangents(
    output: Any, length: int, target: Any = None, likelihood: str | None = None, estimator: str = "Fisher"
) -> Cotangents:
    """Columns s with sum s s^T the covariance of the derivative at a drawn label: its factor, position by position.

    The expected squared gradient is the diagonal of J^T C J, so any such factor gives it.
    """
    return _Columns(Question(output, target, length, likelihood, estimator))


class _Columns(Sequence[list[Tensor]]):
    """One cotangent per column, position and tensor; made on demand, because all of them would fill the memory."""

    def __init__(self, asked: Question) -> None:
        self.asked = asked
        self._rows = [part.rows() for part in asked.parts]
        self._counts = [part.positions * asked.family.columns(r) for part, r in zip(asked.parts, self._rows)]

    def __len__(self) -> int:
        return sum(self._counts)

    @overload
    def __getitem__(self, at: int) -> list[Tensor]: ...
    @overload
    def __getitem__(self, at: slice) -> list[list[Tensor]]: ...
    def __getitem__(self, at: int | slice) -> list[Tensor] | list[list[Tensor]]:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(len(self)))]
        if not -len(self) <= at < len(self):
            raise IndexError(at)
        at %= len(self)
        which = 0
        while at >= self._counts[which]:
            at -= self._counts[which]
            which += 1
        part, rows = self.asked.parts[which], self._rows[which]
        position, column = divmod(at, self.asked.family.columns(rows))
        made = self.asked.family.column(rows[position :: part.positions], column)
        if part.positions > 1:
            whole = torch.zeros_like(rows)
            whole[position :: part.positions] = made
            made = whole
        cotangent = [torch.zeros_like(leaf) for leaf in self.asked.leaves]
        cotangent[part.index] = part.back(made)
        return cotangent


def loss_cotangents(loss: Callable[[Any, Any], Any], output: Any, target: Any, length: int) -> Cotangents:
    """Derivatives of the caller's own loss, each sample's with respect to its own output."""
    if isinstance(target, Target):
        target = target.labels
    leaves = tensors(output)
    if not leaves:
        raise TypeError(f"the model returned {type(output).__name__}, which holds no tensors; pass forward=")
    for leaf in leaves:
        if leaf.ndim == 0 or leaf.shape[0] != length:
            raise ValueError(
                f"the model returned a tensor of shape {list(leaf.shape)} for {length} samples; "
                "the samples must lie along the first dimension of its output"
            )
    if isinstance(target, torch.Tensor):
        target = target.to(leaves[0].device)
    free = map_tensors(lambda t: t.detach().requires_grad_(t.is_floating_point()), output)
    value = loss(free, target)
    if not isinstance(value, torch.Tensor) or (value.ndim > 0 and value.shape != (length,)):
        got = list(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
        raise ValueError(
            f"loss(output, target) must return a scalar or a vector of the {length} samples' losses, "
            f"got {got}; sum or average over everything but the samples"
        )
    if value.ndim > 0:
        return [_derivative(value.sum(), tensors(free))]
    # A scalar may weigh samples unevenly (ignored tokens, class weights), so evaluate each sample alone.
    singles = []
    for i in range(length):
        row = slice(i, i + 1)
        one = map_tensors(lambda t: t.detach().requires_grad_(t.is_floating_point()), take(output, row))
        singles.append(_derivative(loss(one, None if target is None else take(target, row)), tensors(one)))
    return [[torch.cat(column) for column in zip(*singles)]]


def _derivative(value: torch.Tensor, leaves: list[torch.Tensor]) -> list[torch.Tensor]:
    varying = [leaf for leaf in leaves if leaf.requires_grad]
    if not value.requires_grad:
        raise ValueError("loss(output, target) does not depend on the output: it must not detach it")
    found = dict(zip(map(id, varying), torch.autograd.grad(value, varying, allow_unused=True)))
    return [torch.zeros_like(leaf) if (g := found.get(id(leaf))) is None else g for leaf in leaves]
