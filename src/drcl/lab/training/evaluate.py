"""What the learner measures between tasks: test accuracy, and how far each layer's shared weights have moved."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Literal

import torch
from torch import Tensor

from drcl.lab.common import parallel
from drcl.lab.methods.base import Method
from drcl.lab.runs.files import Drift
from drcl.lab.streams import Task


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


@torch.no_grad()
def movement(
    task: int, before: Mapping[str, Tensor], after: Mapping[str, Tensor]
) -> tuple[list[Drift], dict[str, float]]:
    """One row a layer, and over all of them the shares that stayed (exactly, within 0.05 and 0.001 of their size) and
    the length of the way."""
    layers: dict[str, list[tuple[Tensor, Tensor]]] = {}
    for name, old in before.items():
        if old.numel():
            layers.setdefault(name.removeprefix("trunk.").rpartition(".")[0] or name, []).append((old, after[name]))
    rows, weights, square = [], 0, 0.0
    kept = {"unmoved": 0, "effective_stability": 0, "effective_stability_0.001": 0}
    for layer, pairs in layers.items():
        count = sum(old.numel() for old, _ in pairs)
        stayed, length, size, largest, distance = 0, 0.0, 0.0, 0.0, 0.0
        for old, new in pairs:
            change, scale = (new.double() - old.double()).abs(), old.double().abs()
            same = new == old
            stayed += int(same.sum())
            kept["effective_stability"] += int((same | (change < 0.05 * scale)).sum())
            kept["effective_stability_0.001"] += int((same | (change < 0.001 * scale)).sum())
            distance += float(change.sum())
            largest = max(largest, float(change.max()))
            length += float(change.square().sum())
            size += float(scale.square().sum())
        relative = math.sqrt(length / size) if size else (0.0 if length == 0 else math.nan)
        rows.append(Drift(task, layer, count, stayed / count, distance / count, largest, relative))
        kept["unmoved"] += stayed
        weights, square = weights + count, square + length
    if not weights:
        return [], {}
    return rows, {name: value / weights for name, value in kept.items()} | {"stiffness": math.sqrt(square)}
