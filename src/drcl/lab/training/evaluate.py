"""What the learner measures between tasks: test accuracy, and how far each layer's shared weights have moved."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Literal

import torch
from torch import Tensor

from drcl.drift import between
from drcl.lab.common import parallel
from drcl.lab.methods.base import Method
from drcl.lab.streams import Stream, Task
from drcl.lab.training.rows import DriftRow
from drcl.lab.training.settings import Training


@torch.no_grad()
def accuracy(
    method: Method,
    task: Task,
    batch: int,
    cast: AbstractContextManager[object],
    on: Literal["test", "valid"] = "test",
) -> float:
    """Share of a task's test (or validation) images that are answered rightly, by running the model on them now."""
    images = task.test if on == "test" else task.valid
    if not len(images):
        return math.nan
    device, here = method.setting.device, parallel.world()
    hits = torch.zeros((), dtype=torch.int64, device=device)
    with cast:
        for number, (x, y) in enumerate(images.batches(batch, shuffle=False, augment=False)):
            if number % here.size == here.rank:
                hits += (method.predict(x.to(device), task).argmax(1) == y.to(device)).sum()
    return int(parallel.total(hits)) / len(images)


def chosen(index: int, stream: Stream, training: Training) -> list[int]:
    """The test sets to run after task `index`: all at the end, else those seen, with `evaluate_unseen` the others too,
    and with `evaluate="ends"` the new one alone."""
    everything = range(len(stream))
    if index == everything[-1]:
        return list(everything)
    if training.evaluate == "ends" or (training.evaluate == "auto" and stream.online):
        return [index]
    # A growing head does not answer with classes it has not met.
    unseen = training.evaluate_unseen and stream.scenario != "class"
    return list(everything if unseen else everything[: index + 1])


def movement(
    task: int, before: Mapping[str, Tensor], after: Mapping[str, Tensor]
) -> tuple[list[DriftRow], dict[str, float]]:
    """One row a layer, and over all of them the shares that stayed (exactly, within 0.05 and 0.001 of their size) and
    the length of the way."""
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
    """Mean of what was measured, NaN where nothing was."""
    known = [v for v in values if not math.isnan(v)]
    return sum(known) / len(known) if known else math.nan
