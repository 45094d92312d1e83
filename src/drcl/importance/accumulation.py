"""Units of importance, and how the importance of several tasks adds up.

A task's importance is converted to its unit, the importance of earlier tasks is decayed by `keep` and added, and the
sum may be divided by its mean. Single weights, Kronecker factors and eigenvalues each add up in their own way.
`drcl.consolidation` calls this when a task ends; `drcl.directions.kronecker` calls it while it measures, because
directions are those of the sum over tasks.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from drcl.importance.base import History, Measured

if TYPE_CHECKING:
    from drcl.directions.basis import Eigenbasis

__all__ = [
    "Accumulated",
    "accumulated",
    "add_diagonal",
    "add_diagonal_to_factors",
    "add_eigenvalues",
    "add_factors",
    "in_estimators_unit",
    "in_unit",
    "keep_of",
    "task_sum",
    "unit_of",
]


class Accumulated(NamedTuple):
    """The importance over all tasks, divided by its mean if normalise="global", and that mean."""

    importance: dict[str, Tensor]
    bases: dict[str, Eigenbasis]
    mean: float


# -- units and memory --------------------------------------------------------------------------------------------------


def keep_of(memory: str | float) -> float:
    """How much of the earlier tasks' importance stays when a new one's is added."""
    keep = {"sum": 1.0, "latest": 0.0}.get(str(memory))
    return float(memory) if keep is None else keep


def task_sum(normalise: str, weights: int) -> float | None:
    """The sum of a task's importance over that many weights; None if tasks are added as they were measured."""
    return {"task": float(weights), "share": 1e6}.get(normalise)


def unit_of(history: History, total: float, weights: int) -> float:
    """The factor that puts a task's importance, with this sum over that many weights, into its unit."""
    wanted = task_sum(history.normalise, weights)
    return wanted / total if wanted is not None and 0 < total < float("inf") else 1.0


def in_unit(history: History, measured: Measured) -> Measured:
    """A task's importance in its unit; unchanged if there is no unit, or if the sum is zero or not finite."""
    weights = sum(t.numel() for t in measured.importance.values())
    wanted = task_sum(history.normalise, weights)
    if wanted is None or measured.in_unit:
        return measured
    unit = _mean_of(measured.importance) / (wanted / weights)
    if not 0 < unit < float("inf"):
        return measured
    return replace(measured, importance={name: t / unit for name, t in measured.importance.items()}, in_unit=True)


def in_estimators_unit(history: History, held: Tensor) -> Tensor:
    """The importance of earlier tasks, multiplied by the mean it was divided by."""
    return held * history.mean


def _mean_of(importance: Mapping[str, Tensor]) -> float:
    """The mean over all weights together."""
    return sum(float(t.double().sum()) for t in importance.values()) / sum(t.numel() for t in importance.values())


# -- single weights, and the sum over tasks ----------------------------------------------------------------------------


def accumulated(history: History, measured: Measured) -> Accumulated:
    """Earlier plus new importance in the optimizer's unit, and the size of that unit in the estimator's.

    With ``normalise="global"`` the unit is the mean over all protected weights; otherwise each task has its own unit.
    """
    scale = history.keep * history.mean
    total: dict[str, Tensor] = {}
    for name, fresh in measured.importance.items():
        old = history.importance.get(name)
        total[name] = fresh if old is None or not scale or name in measured.with_earlier else fresh + old * scale
    mean, own_units = _mean_of(total), history.normalise != "global"
    if mean <= 0:
        warnings.warn(
            "drcl: the importance is zero for every weight, so nothing will be protected; give the estimator "
            "(drcl.Fisher or drcl.Kronecker) labels='exact', labels='empirical' or more samples, or use "
            "DRCL(damping=...)",
            stacklevel=3,
        )
    elif not own_units:
        total = {name: t / mean for name, t in total.items()}
    mean = 1.0 if own_units else mean
    bases = {name: b.scaled(1 / mean) for name, b in measured.bases.items()} if mean > 0 else measured.bases
    return Accumulated(total, bases, mean)


# -- layers with directions --------------------------------------------------------------------------------------------


def add_factors(history: History, a: Tensor, g: Tensor, old: Eigenbasis) -> float:
    """Add a layer's earlier factors to the new A and G; returns how many tasks the sum covers.

    A sum of Kronecker products is not a Kronecker product, so one pair of factors for all tasks is an approximation, as
    in online structured Laplace (Ritter et al. 2018) and natural continual learning (Kao et al. 2021). Here A and G are
    summed separately, and measured eigenvalues correct the importance along their directions.
    """
    a.add_(old.input_factor, alpha=history.keep)
    g.add_(old.output_factor, alpha=history.keep)
    return 1.0 + history.keep * old.count


def add_diagonal_to_factors(history: History, a: Tensor, g: Tensor, earlier: Tensor) -> float:
    """The same if single weights were held: adds factors whose product has the row and column sums of `earlier`.

    `earlier` is [groups, positions, outputs, inputs], in the estimator's unit.
    """
    inputs, outputs = earlier.sum((1, 2)), earlier.sum((1, 3))
    total, size = inputs.sum(-1, keepdim=True), _diagonal(a).sum(-1, keepdim=True)
    usable = (total > 0) & (size > 0)
    inputs = torch.where(usable, inputs * size / total, 0.0)
    outputs = torch.where(usable, outputs / (size * earlier.shape[1]), 0.0)
    for factor, more in ((a, inputs), (g, outputs)):
        _diagonal(factor).add_(more, alpha=history.keep)
    return 1.0 + history.keep


def _diagonal(factor: Tensor) -> Tensor:
    """The diagonal; a side that is not rotated stores nothing else."""
    return factor if factor.ndim == 2 else factor.diagonal(dim1=-2, dim2=-1)


def add_eigenvalues(history: History, values: Tensor, held: Tensor) -> None:
    """Add the importance of earlier tasks along each direction, in the optimizer's unit."""
    values.add_(held, alpha=history.keep * history.mean)


def add_diagonal(history: History, values: Tensor, earlier: Tensor) -> None:
    """The same if single weights were held, in the estimator's unit."""
    values.add_(earlier, alpha=history.keep)
