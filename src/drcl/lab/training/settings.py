"""Settings of a run that do not belong to the method: how long and how fast each task is trained, as the benchmark
says, and settings that are the same for all methods in a comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from drcl.lab.common.fields import option


@dataclass(frozen=True)
class Training:
    """How a run trains, measures and saves."""

    device: str = option("cpu", 'where to train: "cpu", "cuda", "cuda:1", "mps", or "auto" for the best available')
    precision: Literal["fp32", "bf16"] = option("fp32", "number format of the forward pass; weights stay float32")
    optimizer: Literal["sgd", "adam", "adamw"] = option("sgd", "optimizer, for every method that allows a choice")
    weight_decay: float = option(0.0, "weight decay of the optimizer")
    first_epochs: int | None = option(None, "epochs of the first task; none: as many as for the others")
    first_lr: float | None = option(None, "learning rate of the first task; none: the benchmark's")
    first_momentum: float | None = option(None, "momentum of the first task, with SGD; none: the benchmark's")
    later_lr: float | None = option(None, "learning rate from the second task on; none: the benchmark's")
    # The default is None so that the names of runs without this schedule do not change.
    patience: int | None = option(None, "plateau: epochs without better validation loss before the rate falls; none: 5")
    factor: float | None = option(None, "plateau: the number by which the rate is then divided; none: 3")
    min_lr: float | None = option(None, "plateau: the smallest rate; none: 0.0001")
    at_min_lr: Literal["stop", "stay"] | None = option(
        None, "plateau: below min_lr, stop training, or stay at min_lr until patience runs out once more; none: stop"
    )
    clip: float | None = option(None, "largest gradient norm; longer gradients are scaled down")
    deterministic: bool = option(True, "use only algorithms that give the same bits every time")
    evaluate: Literal["auto", "all", "ends"] = option(
        "auto", "test sets after each task: all seen, or only the new one and all at the end (auto: ends if online)"
    )
    evaluate_on: Literal["test", "valid"] = option(
        "test", "data on which accuracy is measured; valid is for choosing settings and never reads the test sets"
    )
    evaluate_unseen: bool = option(False, "also test on tasks still to come, for forward transfer")
    evaluate_batch: int = option(256, "images per batch when testing")
    first_epoch: bool = option(True, "test once more after the first epoch of a task (after-one-epoch accuracy)")
    step_norms: bool = option(False, "measure the length of every step (stiffness of long streams); slower")
    # The options below do not change the result of a run, only how it is carried out.
    threads: int | None = option(None, "CPU threads; none: torch chooses")
    log_every: int = option(100, "steps between two points of the training curve")
    checkpoint_every: int | None = option(None, "steps between two checkpoints, in addition to those by time")
    checkpoint_seconds: float = option(60.0, "seconds between two checkpoints within a task")
    keep_checkpoint: bool = option(True, "keep the last checkpoint of a finished run")

    def __post_init__(self) -> None:
        for key in ("threads", "checkpoint_every", "evaluate_batch", "log_every", "first_epochs", "patience"):
            value = getattr(self, key)
            if value is not None and value < 1:
                raise ValueError(f"training: {key}={value}: give a whole number of at least 1")
        if self.factor is not None and not 1 < self.factor < float("inf"):
            raise ValueError(f"training: factor={self.factor}: give a finite number above 1, or none")
        for key in ("first_lr", "later_lr", "min_lr", "clip"):
            value = getattr(self, key)
            if value is not None and not value > 0:
                raise ValueError(f"training: {key}={value}: give a number above 0, or none")
        if self.first_momentum is not None and not 0 <= self.first_momentum < 1:
            raise ValueError(f"training: first_momentum={self.first_momentum}: give 0 <= first_momentum < 1, or none")
        if self.first_momentum is not None and self.optimizer != "sgd":
            raise ValueError(
                f"training: first_momentum={self.first_momentum}: optimizer={self.optimizer} has no momentum to set; "
                "leave it out, or use optimizer=sgd"
            )
        for key in ("weight_decay", "checkpoint_seconds"):
            if not getattr(self, key) >= 0:
                raise ValueError(f"training: {key}={getattr(self, key)}: give a number of 0 or more")


# Runs that differ only in these count as the same run: they share a directory and a row of a table.
OPERATION = ("threads", "log_every", "checkpoint_every", "checkpoint_seconds", "keep_checkpoint")
