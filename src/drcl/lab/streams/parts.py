"""From a data set to the three parts from which every builder starts: train, valid and test, disjoint and
complete."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from drcl.lab.common import seeds
from drcl.lab.data.base import DataSet, Split
from drcl.lab.streams.examples import Examples
from drcl.lab.streams.view import View


@dataclass(frozen=True, eq=False)
class Parts:
    """A whole data set as examples, with the data set's own labels."""

    name: str
    classes: tuple[str, ...]
    train: Examples
    valid: Examples
    test: Examples

    def three(self) -> tuple[Examples, Examples, Examples]:
        return self.train, self.valid, self.test


def split_parts(
    data: DataSet,
    *,
    seed: int,
    valid: float = 0.0,
    limit_per_class: int | None = None,
    test_per_class: int | None = None,
    view: View | None = None,
) -> Parts:
    """Cut `data` into train, valid and test.

    `valid` is the share of each class of the official training data that becomes the validation part.
    If the release has its own validation part, that one is used and the training data stay complete.
    `limit_per_class` keeps that many examples per class, drawn by `seed`, of train and valid together, and
    as many (or `test_per_class`) of test.
    """
    if not 0 <= valid < 1:
        raise ValueError(f"valid={valid} is the share of training data to validate on: give 0 <= valid < 1")
    for name, limit in (("limit_per_class", limit_per_class), ("test_per_class", test_per_class)):
        if limit is not None and limit < 1:
            raise ValueError(f"{name}={limit} must be at least one example, or None for all")
    view = view or View()
    still = replace(view, crop=0, flip=False)
    train = _limited(_everything(data.train, view), limit_per_class, seed, "limit train")
    test_limit = limit_per_class if test_per_class is None else test_per_class
    test = _limited(_everything(data.test, still), test_limit, seed, "limit test")
    if data.valid is not None:
        held = _limited(_everything(data.valid, still), limit_per_class, seed, "limit valid")
    else:
        rank, count = class_ranks(train.labels, seed, "valid")
        # At least one example of each class that has two, because an empty class could not be validated.
        wanted = np.floor(valid * count + 0.5) if valid else np.zeros(len(count))
        if valid:
            wanted = np.clip(wanted, np.minimum(count - 1, 1), count - 1)
        chosen = rank < wanted
        held, train = train.subset(chosen).with_view(still), train.subset(~chosen)
    return Parts(data.name, data.classes, train, held, test)


def class_ranks(labels: np.ndarray, seed: int, *path: int | str) -> tuple[np.ndarray, np.ndarray]:
    """For each example, its position in a random order of its class, and the number of examples of its class.

    Cutting at a rank splits every class in the same proportion. Attribute tables count as one class.
    """
    flat = labels if labels.ndim == 1 else np.zeros(len(labels), np.int64)
    order = np.lexsort((seeds.words(len(flat), seed, *path), flat))
    _, inverse, count = np.unique(flat, return_inverse=True, return_counts=True)
    starts = np.cumsum(count) - count
    rank = np.empty(len(flat), np.int64)
    rank[order] = np.arange(len(flat))
    return rank - starts[inverse], count[inverse]


def _everything(split: Split, view: View) -> Examples:
    labels = np.asarray(split.labels, np.int64)
    return Examples(split.images, np.arange(len(labels), dtype=np.int64), labels, view)


def _limited(examples: Examples, limit: int | None, seed: int, word: str) -> Examples:
    if limit is None:
        return examples
    rank, _ = class_ranks(examples.labels, seed, word)
    return examples.subset(rank < limit)
