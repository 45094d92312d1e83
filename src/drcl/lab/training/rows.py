"""Rows that the learner reports during a run, and that a run's directory stores as lines of a table."""

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
    """How one task changed one layer's shared weights; ``unmoved`` is the share that stayed equal bit for bit."""

    task: int
    layer: str
    weights: int
    unmoved: float
    mean_change: float
    largest_change: float
    relative_change: float


@dataclass(frozen=True)
class LossPoint:
    """Mean loss on some test images of the first and of the newest task, at one moment while the newest is trained."""

    task: int
    epoch: int
    step: int
    first_loss: float
    current_loss: float


@dataclass(frozen=True)
class StepRow:
    """One measured training step: lengths of vectors over the shared weights."""

    task: int
    epoch: int
    step: int
    step_norm: float  # the step itself
    proposed: float  # what the gradient asked for
    passed: float  # what the method let through
    still: float  # share of weights that did not change in any bit
    residual: float  # of the splitting's last iteration; NaN for methods without splitting
    iterations: float


@dataclass(frozen=True)
class IterationRow:
    """Mean residual of one iteration of the splitting, over the measured steps of a task."""

    task: int
    iteration: int
    residual: float


@dataclass(frozen=True)
class UpdateRow:
    """Mean update of one weight, over the measured steps of a task."""

    task: int
    weight: int
    proposed: float
    passed: float


@dataclass(frozen=True)
class ChangeRow:
    """How many of a layer's weights changed by how much over a task; see `drcl.lab.training.changes`."""

    task: int
    layer: str
    weights: int
    unmoved: int
    counts: tuple[int, ...]


Record = LossPoint | StepRow | IterationRow | UpdateRow | ChangeRow
