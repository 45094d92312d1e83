"""What is recorded of each task in addition to the accuracy matrix: one value per task and name, and rows for the
files.

All of this only observes: a run computes the same numbers with it and without it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from drcl.lab.methods.base import Method, Where
from drcl.lab.streams import Stream
from drcl.lab.training import changes, evaluate
from drcl.lab.training.rows import LossPoint, Record
from drcl.lab.training.samples import MEANS, UPDATE_TASKS, Samples
from drcl.lab.training.settings import Training

DRIFTS = ("effective_stability", "effective_stability_0.001", "unmoved", "stiffness")
KEYS = (*DRIFTS, "directions_held", *MEANS, "first_loss", "current_loss", "seconds")
IMAGES = 64  # of a test set, for the loss along the way
LOOKS = 10  # measurements of that loss per task, plus one before its first step


class Diary:
    """One page per task; `values` holds NaN where nothing was measured."""

    def __init__(self, tasks: int) -> None:
        self.tasks = tasks
        self.values = {key: [math.nan] * tasks for key in KEYS}
        self.step_losses: list[list[tuple[float, float]]] = [[] for _ in range(tasks)]  # before and after a step
        self.samples = Samples()

    def begin(self) -> None:
        """A task begins."""
        self.samples = Samples()

    def losses(self, method: Method, stream: Stream, at: Where, training: Training) -> LossPoint:
        """The loss of the first and of the newest task now."""
        both = [stream[0]] if at.task == 0 else [stream[0], stream[at.task]]
        with method.deployed():
            found = evaluate.losses(method, both, training.evaluate_on, IMAGES)
        self.values["first_loss"][at.task], self.values["current_loss"][at.task] = found[0], found[-1]
        return LossPoint(at.task, at.epoch, at.step, found[0], found[-1])

    def end(self, task: int) -> list[Record]:
        """The task's training is over: record the sums over its steps."""
        means, rows = self.samples.end(task, changes.told(task, self.tasks, UPDATE_TASKS))
        for key, value in means.items():
            self.values[key][task] = value
        self.step_losses[task] = self.samples.losses
        return rows

    def moved(
        self, task: int, before: Mapping[str, Tensor], after: Mapping[str, Tensor], drift: Mapping[str, float]
    ) -> list[Record]:
        """How far the task has moved the weights."""
        for key in DRIFTS:
            self.values[key][task] = drift.get(key, math.nan)
        return [*changes.histogram(task, before, after)] if changes.told(task, self.tasks) else []

    def state_dict(self) -> dict[str, Any]:
        return {"values": self.values, "step_losses": self.step_losses, "samples": self.samples.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.values |= state["values"]
        self.step_losses = state["step_losses"]
        self.samples.load_state_dict(state["samples"])


def loss_is_due(at: Where) -> bool:
    """At the end of an epoch: whether to measure the loss of the first and the newest task."""
    epochs = -(-at.steps // at.batches)
    every = -(-epochs // LOOKS)
    return at.step == at.steps or (at.epoch + 1) % every == 0
