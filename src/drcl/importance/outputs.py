"""Which tensors of a model's output have labels, and in which layout: converts outputs to rows and back.

Samples are along the first dimension. The classes of a softmax are the last dimension of `[samples, classes]` and
`[samples, tokens, classes]`, as in transformers, and the second of `[samples, classes, height, width]`, as in
`torch.nn.functional.cross_entropy`, unless the labels fit only the other way. A sample's log likelihood is the sum over
its positions. Positions labelled -100 do not count, nor do those that a `Target` excludes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from drcl.per_sample.draw import tensors

__all__ = ["IGNORED", "Scored", "Target", "scored"]

IGNORED = -100  # the label of a position that does not count, as in torch's cross entropy


@dataclass(frozen=True)
class Target:
    """Labels, and which positions count; either may be missing."""

    labels: Tensor | None
    counted: Tensor | None  # [samples, positions ...], true where a position counts


@dataclass(frozen=True)
class Scored:
    """One tensor of an output, with its labels as far as they are known."""

    index: int  # among all tensors of the output
    leaf: Tensor
    axis: int  # the dimension of the classes; the last one if there are no classes
    labels: Tensor | None  # one per row; for numbers, one per number
    counted: Tensor | None  # one per row

    def rows(self) -> Tensor:
        """[samples * positions, classes or numbers], detached."""
        return self.rows_of(self.leaf.detach())

    def rows_of(self, like: Tensor) -> Tensor:
        """The rows of another tensor with the output's shape."""
        like = like[:, None] if like.ndim == 1 else like.movedim(self.axis, -1)
        return like.reshape(-1, like.shape[-1])

    @property
    def positions(self) -> int:
        """The number of rows per sample."""
        return max(1, self.leaf[0].numel() // (self.leaf.shape[self.axis] if self.leaf.ndim > 1 else 1))

    def back(self, rows: Tensor) -> Tensor:
        """Rows in the shape of the output, zero where a position does not count."""
        if self.counted is not None:
            rows = torch.where(self.counted[:, None], rows, 0.0)
        if self.leaf.ndim == 1:
            return rows.reshape(self.leaf.shape)
        shape = list(self.leaf.shape)
        shape.append(shape.pop(self.axis))
        return rows.reshape(shape).movedim(-1, self.axis)

    def sample(self, i: int) -> slice:
        """The rows of one sample."""
        return slice(i * self.positions, (i + 1) * self.positions)


def scored(output: Any, target: Any, length: int, likelihood: str | None, estimator: str) -> list[Scored]:
    """The tensors that have a likelihood; None means softmax by default."""
    found = []
    for index, leaf, labels in _pairs(output, target, likelihood, estimator):
        told = labels if isinstance(labels, Target) else Target(labels, None)
        labels, counted = _as_tensor(told.labels, leaf), told.counted
        if likelihood in ("bernoulli", "gaussian"):
            found.append(_numbers(index, leaf, labels, counted, length))
        else:
            _refuse_numbers(labels, leaf, likelihood, estimator)
            found.append(_classes(index, leaf, labels, counted, length, estimator))
    return found


# -- several tensors ---------------------------------------------------------------------------------------------------


def _pairs(output: Any, target: Any, likelihood: str | None, estimator: str) -> Iterator[tuple[int, Tensor, Any]]:
    """The place of each tensor that has labels, the tensor, and its labels."""
    leaves = tensors(output)
    if isinstance(output, Mapping) and isinstance(output.get("logits"), Tensor):
        # Other tensors of the output (hidden states, a loss) have no labels.
        logits = output["logits"]
        if isinstance(target, Mapping):
            target = target.get("logits", target.get("labels"))
        yield next(i for i, leaf in enumerate(leaves) if leaf is logits), logits, target
        return
    if len(leaves) == 1 and not isinstance(target, Mapping | tuple | list):
        yield 0, leaves[0], target
        return
    if not leaves:
        raise TypeError(
            f"the model returned {type(output).__name__}, not a tensor of logits; "
            "pass forward=lambda model, batch: (logits, labels)"
        )
    labels = _one_each(output, target, len(leaves))
    if labels is None and target is None and likelihood is not None:
        labels = [None] * len(leaves)
    if labels is None:
        raise TypeError(
            f"the model returned {type(output).__name__} with {len(leaves)} tensors, not a tensor of logits, and the "
            "batch does not have labels for each; pass forward=lambda model, batch: (logits, labels), or say "
            f"{estimator}(likelihood=...) if each is the output of that likelihood"
        )
    yield from zip(range(len(leaves)), leaves, labels)


def _one_each(output: Any, target: Any, count: int) -> list[Any] | None:
    """The labels of several outputs: by the same names, or in the same order."""
    if isinstance(output, Mapping) and isinstance(target, Mapping):
        target = [target.get(name) for name in output]
    if isinstance(target, Mapping):
        target = list(target.values())
    return list(target) if isinstance(target, tuple | list) and len(target) == count else None


# -- one tensor --------------------------------------------------------------------------------------------------------


def _as_tensor(labels: Any, leaf: Tensor) -> Tensor | None:
    """The labels as a tensor on the output's device; None if they are not an array, such as names."""
    if not isinstance(labels, Tensor | np.ndarray | list | tuple | int | float):
        return None
    try:
        return torch.as_tensor(labels, device=leaf.device)
    except (TypeError, ValueError):
        return None


def _refuse_numbers(labels: Tensor | None, leaf: Tensor, likelihood: str | None, estimator: str) -> None:
    """Raise if the targets are not labels: then the output is not a softmax, whatever its shape."""
    if labels is None or not labels.is_floating_point():
        return
    if likelihood == "softmax" and labels.shape == leaf.shape:
        return  # the caller asked for a softmax, so these are probabilities of the classes
    raise ValueError(
        f"labels must be whole numbers for a softmax over classes, and the targets are "
        f"{str(labels.dtype).removeprefix('torch.')} of shape {list(labels.shape)}; for several yes-or-no labels per "
        f"sample use {estimator}(likelihood='bernoulli'), for numbers {estimator}(likelihood='gaussian'), for a loss "
        f"of your own {estimator}(labels='empirical', loss=...)"
    )


def _classes(
    index: int, leaf: Tensor, labels: Tensor | None, counted: Tensor | None, length: int, estimator: str
) -> Scored:
    shape = list(leaf.shape)
    if leaf.ndim < 2:
        raise ValueError(
            f"logits must have shape [samples, classes], got {shape}; for one logit per sample use "
            f"{estimator}(likelihood='bernoulli'), for one number {estimator}(likelihood='gaussian')"
        )
    axis = _axis_of_classes(leaf, labels, estimator)
    if shape[0] != length:
        raise ValueError(f"the model returned logits of shape {shape} for {length} samples; one row each is needed")
    if shape[axis] < 2:
        raise ValueError(
            f"logits of shape {shape} have one class, whose softmax is constant; for yes-or-no labels use "
            f"{estimator}(likelihood='bernoulli'), for numbers {estimator}(likelihood='gaussian')"
        )
    where = [n for i, n in enumerate(shape) if i != axis]
    if labels is not None and not labels.is_floating_point() and list(labels.shape) == where:
        real = labels.flatten() != IGNORED
        counted = _both(counted, where, real if not bool(real.all()) else None)
        labels = labels.flatten()
    else:
        counted = _both(counted, where, None)
    return Scored(index, leaf, axis, labels, counted)


def _axis_of_classes(leaf: Tensor, labels: Tensor | None, estimator: str) -> int:
    usual = leaf.ndim - 1 if leaf.ndim <= 3 else 1
    if labels is None or leaf.ndim == 2 or labels.shape == leaf.shape:
        return usual
    for axis in (usual, leaf.ndim - usual):  # with three or more dimensions: the last, or the second
        if [n for i, n in enumerate(leaf.shape) if i != axis] == list(labels.shape):
            return axis
    raise ValueError(
        f"logits must have shape [samples, classes], got {list(leaf.shape)}, and labels of shape "
        f"{list(labels.shape)} do not fit them; [samples, tokens, classes] needs labels [samples, tokens], and "
        "[samples, classes, height, width] needs [samples, height, width]; for any other output use "
        f"{estimator}(labels='empirical', loss=...) with a loss of your own"
    )


def _numbers(index: int, leaf: Tensor, labels: Tensor | None, counted: Tensor | None, length: int) -> Scored:
    if leaf.ndim == 0 or len(leaf) != length:
        raise ValueError(
            f"the model returned a tensor of shape {list(leaf.shape)} for {length} samples; "
            "the samples must lie along the first dimension of its output"
        )
    axis = max(leaf.ndim - 1, 0)
    return Scored(
        index, leaf, axis, labels, _both(counted, list(leaf.shape[:-1] if leaf.ndim > 1 else leaf.shape), None)
    )


def _both(counted: Tensor | None, where: list[int], real: Tensor | None) -> Tensor | None:
    """The positions that both mask and labels count, one per row; a mask with other positions is ignored."""
    if counted is None or list(counted.shape) != where:
        return real
    flat = counted.flatten().bool()
    return flat if real is None else flat.to(real.device) & real
