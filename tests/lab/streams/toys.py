"""Small data sets and examples whose every image can be told from its bytes."""

from __future__ import annotations

import numpy as np
import torch

from drcl.lab.data.base import DataSet, Split
from drcl.lab.streams.examples import Examples
from drcl.lab.streams.view import View


def split(per_class: int, classes: int, shape=(1, 8, 8), offset: int = 0, groups: int | None = None) -> Split:
    """Image i is filled with pixels that encode i, so that every image can be told from its bytes."""
    count = per_class * classes
    numbers = np.arange(count) + offset
    images = np.zeros((count, *shape), np.uint8)
    images[:, 0, 0, 0] = numbers % 251
    images[:, 0, 0, 1] = numbers // 251
    images[:, 0, 1:] = np.arange(7 * 8).reshape(7, 8) if shape == (1, 8, 8) else 9
    labels = np.tile(np.arange(classes), per_class)
    return Split(images, labels, None if groups is None else numbers % groups)


def toy(classes: int = 10, train: int = 20, test: int = 5, name: str = "toy", **how) -> DataSet:
    names = tuple(f"class {c}" for c in range(classes))
    return DataSet(name, split(train, classes, **how), split(test, classes, offset=30_000, **how), names)


def numbers(examples) -> list[int]:
    """The original row numbers of examples, in order."""
    return examples.rows.tolist()


def examples(count: int = 50, shape=(3, 6, 6), view: View | None = None, key: int = 0) -> Examples:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (count + 10, *shape), dtype=np.uint8)
    rows = rng.permutation(count + 10)[:count]
    return Examples(images, rows, np.arange(count), view or View(), key)


def same(left, right) -> bool:
    left, right = list(left), list(right)
    return len(left) == len(right) and all(
        torch.equal(a, c) and torch.equal(b, d) for (a, b), (c, d) in zip(left, right)
    )
