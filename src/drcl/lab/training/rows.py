"""What the learner tells row by row while a run goes on, and a run's directory keeps as lines of a table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CurvePoint:
    """One sample of the training curve; NaN where it was not measured."""

    task: int
    epoch: int
    step: int
    loss: float
    accuracy: float


@dataclass(frozen=True)
class DriftRow:
    """What one task did to one layer's shared weights; ``unmoved`` is the share that stayed bit for bit."""

    task: int
    layer: str
    weights: int
    unmoved: float
    mean_change: float
    largest_change: float
    relative_change: float
