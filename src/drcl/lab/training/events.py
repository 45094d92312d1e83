"""What a run tells while it goes on: events for a display, numbers for a logger."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

Kind = Literal["start", "step", "epoch", "task", "consolidation", "evaluation", "finish", "resume"]


@dataclass(frozen=True)
class Event:
    """One moment of a run. Tasks, epochs and steps count from 0; what is not known at the moment is None.

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
    accuracy: float | None = None  # on the task at hand
    average_accuracy: float | None = None  # over the tasks seen
    seconds: float = 0.0  # since the run began, all its pieces together


class Logger(Protocol):
    """Where numbers go beside the run's own files: TensorBoard, MLflow, ..."""

    def log(self, values: dict[str, float], step: int) -> None: ...

    def close(self) -> None: ...
