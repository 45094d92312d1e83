"""Units of importance, and how tasks add up: all arithmetic between one task's importance and what is held.

A task's importance is put into its unit, what earlier tasks left is decayed by `keep` and added, and the sum may be
divided by its mean. Single weights, Kronecker factors and eigenvalues along directions each add up in their own way.
`drcl.consolidation` calls this when a task ends; `drcl.directions.kronecker` does while it measures, because directions
are those of the sum.
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
    """What is held from now on, in units of its mean where that is the unit, and that mean."""

    importance: dict[str, Tensor]
    bases: dict[str, Eigenbasis]
    mean: float


# -- units and memory --------------------------------------------------------------------------------------------------


def keep_of(memory: str | float) -> float:
    """How much of the earlier tasks' importance stays when a new one's is added."""
    keep = {"sum": 1.0, "latest": 0.0}.get(str(memory))
    return float(memory) if keep is None else keep


def task_sum(normalise: str, weights: int) -> float | None:
    """What a task's importance sums up to over that many weights; None where tasks are added as they were measured."""
    return {"task": float(weights), "share": 1e6}.get(normalise)


def unit_of(history: History, total: float, weights: int) -> float:
    """What a task's importance, of this sum over that many weights, is multiplied by to be in its unit."""
    wanted = task_sum(history.normalise, weights)
    return wanted / total if wanted is not None and 0 < total < float("inf") else 1.0


def in_unit(history: History, measured: Measured) -> Measured:
    """A task's importance in its unit; left as it is where there is none, such as a sum of zero or of nan."""
    weights = sum(t.numel() for t in measured.importance.values())
    wanted = task_sum(history.normalise, weights)
    if wanted is None or measured.in_unit:
        return measured
    unit = _mean_of(measured.importance) / (wanted / weights)
    if not 0 < unit < float("inf"):
        return measured
    return replace(measured, importance={name: t / unit for name, t in measured.importance.items()}, in_unit=True)


def in_estimators_unit(history: History, held: Tensor) -> Tensor:
    """What is held of earlier tasks, multiplied by the mean it was divided by."""
    return held * history.mean


def _mean_of(importance: Mapping[str, Tensor]) -> float:
    """The mean over all weights together."""
    return sum(float(t.double().sum()) for t in importance.values()) / sum(t.numel() for t in importance.values())


# -- single weights, and what is held in the end -----------------------------------------------------------------------


def accumulated(history: History, measured: Measured) -> Accumulated:
    """Earlier importance and the new one in the unit that is held, and what that is in the estimator's.

    With ``normalise="global"`` the unit is their mean over all protected weights; else each task came in its own.
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
    """Add a layer's earlier factors to the new A and G; how many tasks these are the sum of then.

    A sum of Kronecker products is not one itself, so one pair of factors for all tasks is approximate, which online
    structured Laplace (Ritter et al. 2018) and natural continual learning (Kao et al. 2021) face too. Here A and G are
    summed each for itself, and measured eigenvalues mend the importance along their directions.
    """
    a.add_(old.input_factor, alpha=history.keep)
    g.add_(old.output_factor, alpha=history.keep)
    return 1.0 + history.keep * old.count


def add_diagonal_to_factors(history: History, a: Tensor, g: Tensor, earlier: Tensor) -> float:
    """The same where single weights were held: factors whose product has the row sums and column sums of theirs.

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
    """Of a side that is not rotated the diagonal is all there is."""
    return factor if factor.ndim == 2 else factor.diagonal(dim1=-2, dim2=-1)


def add_eigenvalues(history: History, values: Tensor, held: Tensor) -> None:
    """Add what earlier tasks needed along each direction, in the unit that is held."""
    values.add_(held, alpha=history.keep * history.mean)


def add_diagonal(history: History, values: Tensor, earlier: Tensor) -> None:
    """The same where single weights were held, in the estimator's unit."""
    values.add_(earlier, alpha=history.keep)
