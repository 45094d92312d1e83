"""The interface between `DRCL.consolidate` and an importance estimator.

The optimizer passes the importance of earlier tasks (`History`), the estimator returns that of the new one
(`Measured`). `drcl.importance.accumulation` adds them up.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

from drcl.per_sample.plan import Forward

if TYPE_CHECKING:
    from drcl.directions.basis import Eigenbasis

__all__ = ["History", "Importance", "Measured", "check_history", "importance_dtype", "measure_of"]


@dataclass(frozen=True)
class History:
    """The importance of earlier tasks, in units of its mean, and how to add a new task to it."""

    bases: Mapping[str, Eigenbasis] = field(default_factory=dict)
    importance: Mapping[str, torch.Tensor] = field(default_factory=dict)
    mean: float = 0.0
    keep: float = 0.0  # how much of it stays
    normalise: str = "global"  # the unit of a new task, see `accumulation.task_sum`
    groups: Mapping[str, int] = field(default_factory=dict)  # a bias in another group is not part of its layer


def importance_dtype(p: torch.Tensor) -> torch.dtype:
    """What importance is computed in: it spans many orders of magnitude, and 16 bits have too few digits to add up."""
    return torch.float32 if p.dtype in (torch.float16, torch.bfloat16) else p.dtype


def check_history(history: Any) -> None:
    """Raise unless it is a History or None."""
    if history is not None and not isinstance(history, History):
        raise TypeError(f"history must be a History of earlier tasks or None, not {type(history).__name__}")


@dataclass(frozen=True)
class Measured:
    """How much each weight matters to a task, and the directions of layers with a basis."""

    importance: dict[str, torch.Tensor]  # by name; for layers with a basis, its diagonal
    bases: dict[str, Eigenbasis] = field(default_factory=dict)  # by the name of the layer's weight
    in_unit: bool = False  # it is already in the unit that `History.normalise` asks for
    with_earlier: frozenset[str] = frozenset()  # names whose importance already includes earlier tasks
    notes: dict[str, Any] = field(default_factory=dict, compare=False)  # findings to store with `describe()`


class Importance(ABC):
    """The base class for estimators of your own: implement `estimate` and `describe`."""

    needs_data: ClassVar[bool] = True
    finds_directions: ClassVar[bool] = False  # `measure` returns bases, so the prox must work along directions
    adds_over_ranks: ClassVar[bool] = False  # it uses `drcl.ranks`; otherwise sharded processes take the mean

    @abstractmethod
    def estimate(
        self,
        model: nn.Module,
        batches: Any,
        parameters: dict[str, nn.Parameter],
        forward: Forward | None = None,
    ) -> dict[str, torch.Tensor]:
        """One tensor >= 0 per parameter: same name, shape and device; float32, or float64 for float64 weights.

        `parameters` are parameters of `model`. `forward(model, batch)` returns `(output, target)`; without it
        a batch is `(inputs, labels)` or inputs alone. The model's modes, gradients and buffers and all global random
        generators are left as found. `batches` may be None when `needs_data` is False.
        """

    def measure(
        self,
        model: nn.Module,
        batches: Any,
        parameters: dict[str, nn.Parameter],
        forward: Forward | None = None,
        history: History | None = None,
    ) -> Measured:
        """What `DRCL.consolidate` calls: the estimate, with whatever else the estimator knows.

        Override it in an estimator that needs the importance of earlier tasks, or that finds directions.
        """
        check_history(history)
        return Measured(self.estimate(model, batches, parameters, forward))

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """How the estimate is made, as plain values, to be stored with it."""


def measure_of(estimator: Any) -> Callable[..., Measured]:
    """The estimator's `measure`; one that does not derive from `Importance` may have only `estimate`."""
    if hasattr(estimator, "measure"):
        return estimator.measure
    return lambda *arguments: Importance.measure(estimator, *arguments)
