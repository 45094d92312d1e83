"""Long online streams: the problem changes every so many steps and each step sees fresh random draws.

Accuracy is taken on each batch before the update, by the learner; the stream only says ``online=True``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np

from drcl.lab.common import seeds
from drcl.lab.data.base import DataSet
from drcl.lab.streams.assembly import shared_stream, shared_task
from drcl.lab.streams.builders import label_permutations
from drcl.lab.streams.parts import split_parts
from drcl.lab.streams.task import Scenario, Stream, Task


def online(
    data: DataSet,
    *,
    seed: int,
    tasks: int,
    steps: int,
    batch: int = 1,
    permute: Literal["labels", "inputs"] = "labels",
    scenario: Scenario = "domain",
    **parts: Any,
) -> Stream:
    """`tasks` tasks of `steps` batches of `batch` draws each. At every change all labels are renamed (the
    renamings compose), or all pixels are put in another order. Each task shuffles the training data again
    and draws without repetition, starting over when they run out. The test part carries the task's own
    labels or pixel order."""
    if permute not in ("labels", "inputs"):
        raise ValueError(f'permute={permute!r}: an online stream changes "labels" or "inputs"')
    if steps < 1 or batch < 1:
        raise ValueError(f"steps={steps}, batch={batch}: both must be at least 1")
    cut = split_parts(data, seed=seed, **parts)
    tables = label_permutations(tasks, len(data.classes), seed)
    pixels = int(np.prod(cut.train.shape))

    def make(index: int) -> Task:
        train = cut.train.subset(draws(len(cut.train), steps * batch, seed, index))
        three = [train, cut.valid, cut.test]
        classes = None
        if permute == "labels":
            three = [part.with_labels(tables[index][part.labels]) for part in three]
            classes = np.argsort(tables[index])
        else:
            order = seeds.permutation(pixels, seed, "inputs", index)
            three = [part.with_view(replace(part.view, permutation=order)) for part in three]
        return shared_task(cut, index, three, scenario, classes=classes, online=True)

    return shared_stream(cut, f"online, {permute} permuted", make, tasks, scenario, seed, online=True)


def draws(available: int, wanted: int, seed: int, task: int) -> np.ndarray:
    """`wanted` positions out of `available`: a random order, and a new one whenever it is used up."""
    rounds = -(-wanted // available)
    orders = [seeds.permutation(available, seed, "draws", task, turn) for turn in range(rounds)]
    return np.concatenate(orders)[:wanted]
