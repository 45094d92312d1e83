"""What the learner measures between tasks: test accuracy, and how far each layer's shared weights have moved."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from drcl.drift import between
from drcl.lab.common import parallel, seeds
from drcl.lab.methods.base import Batch, Method
from drcl.lab.streams import Stream, Task
from drcl.lab.training.rows import DriftRow
from drcl.lab.training.settings import Training
from drcl.preserve import undisturbed


@torch.no_grad()
def accuracy(
    method: Method,
    task: Task,
    batch: int,
    cast: AbstractContextManager[object],
    on: Literal["test", "valid"] = "test",
) -> float:
    """Share of a task's test (or validation) images that are answered rightly, by running the model on them now.

    The images come in a mixed order, the same at every call. Many data sets are stored class by class, and norm layers
    that use the statistics of the current batch need all classes in it.
    """
    images = task.test if on == "test" else task.valid
    if not len(images):
        return math.nan
    device, here = method.setting.device, parallel.world()
    hits = torch.zeros((), dtype=torch.int64, device=device)
    with cast:
        for number, (x, y) in enumerate(images.batches(batch, augment=False)):
            if number % here.size == here.rank:
                hits += (method.predict(x.to(device), task).argmax(1) == y.to(device)).sum()
    return int(parallel.total(hits)) / len(images)


@torch.no_grad()
def losses(method: Method, tasks: Sequence[Task], on: Literal["test", "valid"], count: int) -> list[float]:
    """Mean cross-entropy of the method's answers on `count` test (or validation) images of each task, the same ones
    every time. The measurement does not influence the run."""
    device, found = method.setting.device, []
    with undisturbed(method.model), torch.no_grad():
        method.model.eval()
        for task in tasks:
            images = task.test if on == "test" else task.valid
            if not len(images):
                found.append(math.nan)
                continue
            order = seeds.permutation(len(images), method.setting.seed, "loss", task.index)
            (x, y), *_ = images.subset(order[:count]).batches(count, shuffle=False, augment=False)
            found.append(float(F.cross_entropy(method.predict(x.to(device), task).float(), y.to(device))))
    return found


def loss_of(method: Method, task: Task, batch: Batch) -> float:
    """Mean cross-entropy on a batch of a task, with the current weights. The measurement does not influence the run."""
    with undisturbed(method.model), torch.no_grad():
        method.model.eval()
        return float(F.cross_entropy(method.predict(batch.x, task).float(), batch.y))


def chosen(index: int, stream: Stream, training: Training) -> list[int]:
    """The test sets to run after task `index`: all at the end, otherwise those of the tasks seen; with
    `evaluate_unseen` the others too, and with `evaluate="ends"` only the new one."""
    everything = range(len(stream))
    if index == everything[-1]:
        return list(everything)
    if training.evaluate == "ends" or (training.evaluate == "auto" and stream.online):
        return [index]
    # A growing head cannot predict classes that it has not seen.
    unseen = training.evaluate_unseen and stream.scenario != "class"
    return list(everything if unseen else everything[: index + 1])


def movement(
    task: int, before: Mapping[str, Tensor], after: Mapping[str, Tensor]
) -> tuple[list[DriftRow], dict[str, float]]:
    """One row per layer; and over all layers the shares that stayed (exactly, within 0.05 and 0.001 of their size) and
    the length of the change."""
    if not any(weight.numel() for weight in before.values()):
        return [], {}
    old, new = ({name.removeprefix("trunk."): t for name, t in weights.items()} for weights in (before, after))
    found = between(old, new)
    rows = [
        DriftRow(task, r.layer, r.weights, r.unmoved, r.mean_change, r.largest_change, r.relative_change) for r in found
    ]
    return rows, {
        "unmoved": found.total.unmoved,
        "effective_stability": found.effective_stability,
        "effective_stability_0.001": found.strict_stability,
        "stiffness": found.stiffness,
    }


def mean(values: Iterable[float]) -> float:
    """Mean of the measured values; NaN if there are none."""
    known = [v for v in values if not math.isnan(v)]
    return sum(known) / len(known) if known else math.nan
