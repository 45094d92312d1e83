"""What `DRCL.consolidate` and an importance estimator say to each other when a task ends.

The optimizer says what earlier tasks left (`History`), the estimator what the new one brings (`Measured`). How both are
put together is in `drcl.importance.accumulation`.
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
    """What earlier tasks left, in units of their mean, and how a new task is added to it."""

    bases: Mapping[str, Eigenbasis] = field(default_factory=dict)
    importance: Mapping[str, torch.Tensor] = field(default_factory=dict)
    mean: float = 0.0
    keep: float = 0.0  # how much of it stays
    normalise: str = "global"  # the unit of a new task, see `accumulation.task_sum`
    groups: Mapping[str, int] = field(default_factory=dict)  # a bias of another group is not part of its layer


def importance_dtype(p: torch.Tensor) -> torch.dtype:
    """What importance is computed in: it spans many orders of magnitude, and 16 bits have too few digits to add up."""
    return torch.float32 if p.dtype in (torch.float16, torch.bfloat16) else p.dtype


def check_history(history: Any) -> None:
    """Raise unless it is one, or None."""
    if history is not None and not isinstance(history, History):
        raise TypeError(f"history must be a History of earlier tasks or None, not {type(history).__name__}")


@dataclass(frozen=True)
class Measured:
    """How much a task needs each weight, and the directions of layers along which it does."""

    importance: dict[str, torch.Tensor]  # by name; where a basis is, its diagonal
    bases: dict[str, Eigenbasis] = field(default_factory=dict)  # by the name of the layer's weight
    in_unit: bool = False  # it is already in the unit that `History.normalise` asks for
    with_earlier: frozenset[str] = frozenset()  # names whose importance is already that of earlier tasks too
    notes: dict[str, Any] = field(default_factory=dict, compare=False)  # what it found out, beside `describe`


class Importance(ABC):
    """Derive from it to bring an estimator of your own: `estimate` and `describe` are enough."""

    needs_data: ClassVar[bool] = True
    finds_directions: ClassVar[bool] = False  # `measure` gives bases, so a prox has to go along directions
    adds_over_ranks: ClassVar[bool] = False  # with `drcl.ranks`; otherwise processes of a sharded model take the mean

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
        """What `DRCL.consolidate` asks for: the estimate, with whatever else the estimator knows.

        An estimator that needs to know what earlier tasks left, or that finds directions, has a `measure` of its own.
        """
        check_history(history)
        return Measured(self.estimate(model, batches, parameters, forward))

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """How the estimate is made, as plain values, to be stored beside it."""


def measure_of(estimator: Any) -> Callable[..., Measured]:
    """The estimator's `measure`; one that is not derived from `Importance` may have `estimate` alone."""
    if hasattr(estimator, "measure"):
        return estimator.measure
    return lambda *arguments: Importance.measure(estimator, *arguments)
