"""What the learner trains on in one task: its examples, or those of several tasks mixed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np
import torch

from drcl.lab.common import seeds
from drcl.lab.methods.base import Batch
from drcl.lab.streams import Task
from drcl.lab.streams.examples import BLOCK


class Mixture:
    """The training data of some tasks. A batch depends only on seed, epoch and position, so any step can be resumed."""

    def __init__(self, tasks: Sequence[Task], size: int, seed: int) -> None:
        self.tasks, self.size, self.seed = list(tasks), size, seed
        self.count = sum(len(task.train) for task in self.tasks)
        if not self.count:
            raise ValueError(f"task {self.tasks[0].name!r} has no training examples: raise limit_per_class")
        self.batches = -(-self.count // size)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of one epoch from batch `start` on."""
        # Start at the edge of a block and skip forward: then a batch has the same place in memory as without a
        # restart, and kernels whose rounding depends on alignment give the same bits.
        block = max(1, BLOCK // self.size)
        begin = start // block * block
        return islice(self._from(epoch, begin), start - begin, None)

    def _from(self, epoch: int, begin: int) -> Iterator[Batch]:
        if len(self.tasks) > 1:
            yield from self._mixed(epoch, begin)
            return
        task = self.tasks[0]
        shuffle = not task.online  # an online task's examples are random draws already
        for x, y in task.train.batches(self.size, shuffle=shuffle, seed=self.seed, epoch=epoch, start=begin):
            yield Batch(x, y, task.head)

    def _mixed(self, epoch: int, begin: int) -> Iterator[Batch]:
        order = seeds.permutation(self.count, self.seed, "mixture", epoch)
        starts = np.cumsum([0, *(len(task.train) for task in self.tasks)])
        block = max(1, BLOCK // self.size) * self.size
        for first in range(begin * self.size, self.count, block):
            chosen = order[first : first + block]
            home = np.searchsorted(starts, chosen, side="right") - 1
            draws = seeds.words(len(chosen), self.seed, "mixture augment", epoch, skip=first)
            x = torch.empty((len(chosen), *self.tasks[0].train.shape))
            y = torch.empty(len(chosen), dtype=torch.int64)
            for number in np.unique(home).tolist():
                train, rows = self.tasks[number].train, np.flatnonzero(home == number)
                inside = chosen[rows] - starts[number]
                where = torch.from_numpy(rows)
                x[where] = train.view.tensor(train._gather(inside), draws[rows] if train.view.augments else None)
                y[where] = torch.from_numpy(train.labels[inside])
            heads = torch.tensor([task.head for task in self.tasks])[torch.from_numpy(home)]
            for start in range(0, len(chosen), self.size):
                part = slice(start, start + self.size)
                yield Batch(x[part], y[part], heads[part])
