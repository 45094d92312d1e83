"""Examples of a task and the batches drawn from them. Streams consist of these; the learner trains on the
batches.

Images are not copied: they stay uint8, in an array or a memory map shared by all tasks. An `Examples` only
knows its rows and the `View` through which it sees them. A batch depends on (seed, epoch, position) alone: no
generator is carried along, so an interrupted epoch continues at any batch with the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from drcl.lab.common import seeds
from drcl.lab.streams.view import View

# Small batches are cut from a block of about this many images, so that a batch of one does not need all
# the calls for itself. Larger blocks do not fit into the processor's cache and are slower again.
BLOCK = 128


@dataclass(frozen=True, eq=False)
class Examples:
    """Some rows of an image array with their labels: one of a task's ``train``, ``valid`` and ``test``."""

    source: np.ndarray  # uint8 [N, C, H, W], shared with other tasks
    rows: np.ndarray  # int64 [n], the rows of `source` in this set
    labels: np.ndarray  # int64 [n], as the task's head counts them
    view: View = field(default_factory=View)
    key: int = 0  # mixed into the shuffling, so that two tasks do not see their images in the same order

    def __post_init__(self) -> None:
        if self.source.ndim != 4 or self.source.dtype != np.uint8:
            raise ValueError(f"images are {self.source.dtype} of shape {self.source.shape}: give uint8 [N, C, H, W]")
        if len(self.rows) != len(self.labels):
            raise ValueError(f"{len(self.rows)} images but {len(self.labels)} labels: give one label per image")

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def shape(self) -> tuple[int, int, int]:
        """``(C, H, W)`` of an image as the network sees it."""
        return self.view.shape(self.source.shape[1:])

    @property
    def images(self) -> np.ndarray:
        """All images as the task sees them, uint8 ``[n, C, H, W]``, before normalisation: a new copy each
        time."""
        out = np.empty((len(self), *self.shape), np.uint8)
        for begin in range(0, len(self), 4096):
            block = np.arange(begin, min(begin + 4096, len(self)))
            out[block] = self.view.pixels(self._gather(block))
        return out

    def take(self, positions: np.ndarray | list[int] | slice) -> tuple[Tensor, Tensor]:
        """Chosen examples as one batch ``(x float32 [B, C, H, W], y int64 [B])``, without augmentation."""
        chosen = np.arange(len(self))[positions]
        return self.view.tensor(self._gather(chosen)), torch.from_numpy(self.labels[chosen])

    def batches(
        self,
        size: int,
        shuffle: bool = True,
        seed: int = 0,
        epoch: int = 0,
        drop_last: bool = False,
        start: int = 0,
        augment: bool = True,
    ) -> Batches:
        """The batches of one epoch, from batch `start` on. Iterating twice gives the same batches twice;
        the next epoch has the next `epoch` number. `augment=False` leaves crop and flip out."""
        return Batches(self, size, shuffle, seed, epoch, drop_last, start, augment)

    def dataset(self) -> Dataset[tuple[Tensor, int]]:
        """The same examples as a torch ``Dataset``, for use with a ``DataLoader``; not augmented."""
        return _TorchDataset(self)

    def subset(self, positions: np.ndarray) -> Examples:
        """The examples at these positions (or where a boolean mask is true)."""
        return replace(self, rows=self.rows[positions], labels=self.labels[positions])

    def with_labels(self, labels: np.ndarray) -> Examples:
        return replace(self, labels=np.ascontiguousarray(labels, dtype=np.int64))

    def with_view(self, view: View) -> Examples:
        return replace(self, view=view)

    def with_key(self, key: int) -> Examples:
        return replace(self, key=key)

    def _gather(self, positions: np.ndarray) -> np.ndarray:
        # asarray: on a memory map `take` would otherwise wrap every block in the slower subclass.
        return np.take(np.asarray(self.source), self.rows[positions], axis=0)


class Batches:
    """One epoch of an `Examples`, ready to be iterated; ``len`` is the number of batches still to come."""

    def __init__(
        self,
        examples: Examples,
        size: int,
        shuffle: bool,
        seed: int,
        epoch: int,
        drop_last: bool,
        start: int,
        augment: bool,
    ) -> None:
        if size < 1:
            raise ValueError(f"size={size} must be at least one example per batch")
        if start < 0:
            raise ValueError(f"start={start} counts batches from 0")
        self.examples, self.size, self.shuffle, self.seed, self.epoch = examples, size, shuffle, seed, epoch
        self.drop_last, self.start, self.augment = drop_last, start, augment

    @property
    def total(self) -> int:
        """Batches of the whole epoch, `start` or not."""
        count = len(self.examples)
        return count // self.size if self.drop_last else -(-count // self.size)

    def __len__(self) -> int:
        return max(0, self.total - self.start)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        examples, size = self.examples, self.size
        first, last = self.start * size, min(len(examples), self.total * size)
        if first >= last:
            return
        if self.shuffle:
            order = seeds.permutation(len(examples), self.seed, "order", examples.key, self.epoch)[first:last]
        else:
            order = np.arange(first, last)
        labels = torch.from_numpy(examples.labels[order])
        block = max(1, BLOCK // size) * size
        for begin in range(0, len(order), block):
            chosen = order[begin : begin + block]
            x = examples.view.tensor(examples._gather(chosen), self._draws(first + begin, len(chosen)))
            y = labels[begin : begin + block]
            if len(x) <= size:
                yield x, y
            else:
                yield from zip(x.split(size), y.split(size))

    def _draws(self, position: int, count: int) -> np.ndarray | None:
        """One random word for each example of the epoch, by its position: blocks and restarts do not
        change it."""
        if not (self.augment and self.examples.view.augments):
            return None
        path = ("augment", self.examples.key, self.epoch)
        return seeds.words(count, self.seed, *path, skip=position)


class _TorchDataset(Dataset[tuple[Tensor, int]]):
    def __init__(self, examples: Examples) -> None:
        self.examples = examples

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        # A plain for loop over the data set ends at an IndexError, so do not wrap around.
        if not -len(self) <= index < len(self):
            raise IndexError(f"index {index} is outside the {len(self)} examples")
        x, y = self.examples.take([index])
        return x[0], int(y[0])
