"""What a run reports during training: events for a display, numbers for a logger, rows for files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from drcl.lab.training.rows import CurvePoint, DriftRow, Record

Kind = Literal["start", "step", "epoch", "task", "consolidation", "evaluation", "finish", "resume"]


@dataclass(frozen=True)
class Event:
    """One moment of a run. Tasks, epochs and steps count from 0; values that are not known yet are None.

    "start" and "resume" come first, "task" when a task begins, "step" a few times a second, "epoch" at its end,
    "consolidation" when a task's training is over, "evaluation" after its test sets, "finish" at the very end.
    """

    kind: Kind
    task: int = 0
    tasks: int = 0
    epoch: int | None = None
    epochs: int | None = None
    step: int | None = None  # within the task
    steps: int | None = None
    loss: float | None = None
    accuracy: float | None = None  # on the current task
    average_accuracy: float | None = None  # over the tasks seen
    seconds: float = 0.0  # since the run began, over all its restarts


class Logger(Protocol):
    """Where numbers go in addition to the run's own files: TensorBoard, MLflow, ..."""

    def log(self, values: dict[str, float], step: int) -> None: ...

    def close(self) -> None: ...


class Watcher:
    """Receives the learner's reports; all of them may be ignored."""

    def event(self, event: Event) -> None: ...

    def log(self, values: dict[str, float], step: int) -> None: ...

    def curve(self, point: CurvePoint) -> None: ...

    def row(self, task: int, accuracies: list[float]) -> None:
        """A row of the accuracy matrix, NaN where nothing was measured."""

    def drift(self, rows: list[DriftRow]) -> None: ...

    def records(self, rows: Sequence[Record]) -> None:
        """Rows of the smaller tables: losses, steps, iterations, updates and changes."""

    def save(self, state: Callable[[], dict[str, Any]]) -> None:
        """A moment at which the state is complete; `state()` collects it. Called in every process, stored by one."""
