"""How long and how fast one task is trained: the plan of the benchmark, and a run's settings for its first task or for
later ones.

The first task is the first that is trained: with joint training, that is the last of the stream. A method takes rate
and momentum from its setting. A method that has its own optimizer and rate, such as Adam's, is not affected by any of
this.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from drcl.lab.benchmarks import Benchmark
from drcl.lab.methods.base import Setting
from drcl.lab.streams import Stream
from drcl.lab.training.settings import Training


@dataclass(frozen=True)
class Plan:
    """How long and how fast each task is trained."""

    epochs: int | None = 1
    steps: int | None = None  # batches per task, instead of epochs
    batch: int = 64
    lr: float = 0.02
    momentum: float = 0.0
    schedule: str = "constant"

    @classmethod
    def of(cls, benchmark: Benchmark) -> Plan:
        own = ("epochs", "steps", "batch", "lr", "momentum", "schedule")
        return cls(**{key: getattr(benchmark, key) for key in own})

    def steps_of(self, batches: int, training: Training, first: bool) -> int:
        """Steps of a task whose epochs have so many batches."""
        if first and training.first_epochs is not None:
            return training.first_epochs * batches
        return self.steps or (self.epochs or 1) * batches


def check(stream: Stream, schedule: str, training: Training) -> None:
    """Refuse settings that this stream cannot support."""
    if training.evaluate_on == "valid" and not len(stream[0].valid):
        raise ValueError("evaluate_on=valid: there are no validation data; hold some out with valid=0.2")
    if schedule == "plateau" and not len(stream[0].valid):
        raise ValueError("schedule=plateau: there are no validation data to follow; hold some out with valid=0.1")
    if stream.online and training.first_epochs is not None:
        raise ValueError(
            f"first_epochs={training.first_epochs}: an online stream is one pass over each task; leave it out, and "
            "give the length of the tasks by steps"
        )
    given = [key for key in ("patience", "factor", "min_lr", "at_min_lr") if getattr(training, key) is not None]
    if given and schedule != "plateau":
        told = f"{given[0]}={getattr(training, given[0])}"
        raise ValueError(f"{told}: the schedule is {schedule}, which has no such setting; use schedule=plateau")


def setting_of(usual: Setting, training: Training, first: bool) -> Setting:
    """What the method may know while it trains this task."""
    changes: dict[str, Any] = {}
    rate = training.first_lr if first else training.later_lr
    if rate is not None:
        changes["lr"] = rate
    if first and training.first_momentum is not None:
        changes |= {"momentum": training.first_momentum, "momentum_given": True}
    return replace(usual, **changes)
