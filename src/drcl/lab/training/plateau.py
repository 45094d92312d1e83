"""The learning rate by validation loss, as HAT, GPM and SPG train: it falls when the loss no longer does, training
stops when it has become too small, and the best weights come back.

After each epoch the mean cross-entropy on the validation data of the task is measured, at the weights that would be
deployed.

    lower than ever before            network and method are kept, and patience begins anew
    `patience` epochs without that    the rate is divided by `factor`
    the rate would be below `min_lr`  stop: the training ends (HAT, GPM)
                                      stay: the rate is min_lr, and patience has to run out once more (SPG)

When a stage ends, by this rule or because its epochs are over, network and method return to the best epoch. The
method's whole state, including its own optimizer, returns with the weights: a path integral then ends where the weights
are, and a memory holds what it held then. So a task ends as if its training had ended with that epoch.

              factor   patience   min_lr         at_min_lr
    HAT       3        5          1e-4           stop
    GPM       2        6          1e-5           stop
    SPG       3        5          1e-3           stay
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.nn import functional as F

from drcl.lab.common import parallel
from drcl.lab.methods.base import Method
from drcl.lab.streams import Task
from drcl.lab.training.settings import Training


class Plateau:
    """One stage of a task. `epoch` takes each validation loss; `scale` is the remaining share of the rate."""

    @classmethod
    def of(
        cls, schedule: str, training: Training, optimizer: torch.optim.Optimizer, state: dict[str, Any] | None
    ) -> Plateau | None:
        """For a stage that begins, or one that continues from `state`; None with other schedules."""
        if schedule != "plateau":
            return None
        first = optimizer.param_groups[0]
        made = cls(training, float(first.get("initial_lr", first["lr"])))
        if state is not None:
            made.__dict__.update(state)  # what `state_dict` gave
        return made

    def __init__(self, training: Training, rate: float) -> None:
        self.patience, self.factor = training.patience or 5, training.factor or 3.0
        self.min_lr, self.stays = training.min_lr or 1e-4, training.at_min_lr == "stay"
        self.first = rate
        self.last = self.best = math.inf  # validation loss
        self.waited = 0  # epochs without a better loss, since the best one or the last cut of the rate
        self.falls = 0
        self.kept: dict[str, Any] = {}

    @property
    def rate(self) -> float:
        """The rate now: that of the optimizer's first group."""
        fallen = self.first / self.factor**self.falls
        return max(fallen, min(self.first, self.min_lr)) if self.stays else fallen

    @property
    def scale(self) -> float:
        """The rate now, as a share of the one at the beginning."""
        return self.rate / self.first

    def epoch(self, loss: float) -> tuple[bool, bool]:
        """Whether this is the best loss so far, and whether training is to stop."""
        if loss < self.best:
            self.best, self.waited = loss, 0
            return True, False
        self.waited += 1
        if self.waited < self.patience:
            return False, False
        if self.stays and self.rate <= self.min_lr:
            return False, True
        self.falls, self.waited = self.falls + 1, 0
        return False, not self.stays and self.rate < self.min_lr

    def look(self, method: Method, tasks: Sequence[Task], batch: int, cast: AbstractContextManager[object]) -> bool:
        """Measure the epoch that has ended and keep it if it is the best; whether training is to stop."""
        self.last = validation_loss(method, tasks, batch, cast)
        better, stop = self.epoch(self.last)
        if better or not self.kept:
            self.kept = {
                "model": {name: t.detach().clone() for name, t in method.model.state_dict().items()},
                "method": copy.deepcopy(method.state_dict()),
            }
        return stop

    def restore(self, method: Method) -> None:
        """Restore network and method to their state after the best epoch."""
        method.model.load_state_dict(self.kept["model"])
        method.load_state_dict(self.kept["method"])
        self.kept = {}
        method.restored()

    def state_dict(self) -> dict[str, Any]:
        """The state from which a resumed stage continues."""
        return {key: getattr(self, key) for key in ("last", "best", "waited", "falls", "kept")}


@torch.no_grad()
def validation_loss(method: Method, tasks: Sequence[Task], batch: int, cast: AbstractContextManager[object]) -> float:
    """Mean cross-entropy over the validation images of these tasks, at the deployed weights, in evaluation mode.

    In a mixed order, as in `evaluate.accuracy`."""
    device, here = method.setting.device, parallel.world()
    total, count = 0.0, sum(len(task.valid) for task in tasks)
    if not count:
        raise ValueError(f"schedule=plateau: task {tasks[0].name!r} has no validation data: raise valid")
    method.model.eval()
    parallel.same_buffers(method.model)
    with method.deployed(), cast:
        for task in tasks:
            for number, (x, y) in enumerate(task.valid.batches(batch, augment=False)):
                if number % here.size == here.rank:
                    logits = method.predict(x.to(device), task).float()
                    total += float(F.cross_entropy(logits, y.to(device), reduction="sum"))
    shared = torch.tensor(total, dtype=torch.float64, device=device if device.type == "cuda" else "cpu")
    return float(parallel.total(shared)) / count
