"""What the benchmarks promise, and data sets of the right form that cost nothing."""

from __future__ import annotations

import numpy as np

from drcl.lab.data.base import DataSet, Split

# name: tasks, classes a task, scenario, classes (or attributes) of the data set, shape of its images
EXPECTED = {
    "digits-permuted": (8, 10, "domain", 10, (1, 8, 8)),
    "digits-split": (5, 2, "task", 10, (1, 8, 8)),
    "mnist-permuted": (10, 10, "domain", 10, (1, 28, 28)),
    "mnist-split": (5, 2, "task", 10, (1, 28, 28)),
    "mnist-permuted-vandeven": (10, 10, "domain", 10, (1, 28, 28)),
    "mnist-split-vandeven": (5, 2, "task", 10, (1, 28, 28)),
    "mnist-rotated": (10, 10, "domain", 10, (1, 28, 28)),
    "mnist-inputs": (200, 10, "domain", 10, (1, 28, 28)),
    "fashion-split": (5, 2, "task", 10, (1, 28, 28)),
    "cifar10-split": (5, 2, "task", 10, (3, 32, 32)),
    "cifar10-permuted": (200, 10, "domain", 10, (3, 32, 32)),
    "cifar10-labels": (400, 10, "domain", 10, (3, 32, 32)),
    "cifar100-10": (10, 10, "task", 100, (3, 32, 32)),
    "cifar100-20": (20, 5, "task", 100, (3, 32, 32)),
    "cifar100-superclass": (20, 5, "task", 100, (3, 32, 32)),
    "tinyimagenet-20": (20, 10, "task", 200, (3, 64, 64)),
    "tinyimagenet-labels": (400, 200, "domain", 200, (3, 64, 64)),
    "imagenet-100": (100, 10, "task", 1000, (3, 32, 32)),
    "celeba-20": (20, 2, "task", 40, (3, 32, 32)),
    "emnist-20": (20, 62, "task", 62, (1, 28, 28)),
    "emnist-labels": (80, 47, "domain", 47, (1, 28, 28)),
    "cub-20": (20, 10, "task", 200, (3, 64, 64)),
    "casia-100": (100, 37, "task", 3755, (1, 32, 32)),
    "hwdb-10": (10, 10, "task", 100, (1, 32, 32)),
    "hanzi-100": (100, 37, "task", 3700, (1, 32, 32)),
    "omniglot-50": (50, 32, "task", 1623, (1, 28, 28)),
    "five-datasets": (5, 10, "task", 10, (1, 28, 28)),
}


def empty(classes: int, shape: tuple[int, int, int], per_class: int, attributes: bool = False) -> DataSet:
    """A data set of the right form whose images are one byte, read many times over."""
    count = per_class * (1 if attributes else classes)
    images = np.broadcast_to(np.zeros(1, np.uint8), (count, *shape))
    labels = np.tile(np.arange(classes), per_class)
    if attributes:
        labels = (np.arange(count)[:, None] % (2 + np.arange(classes)) == 0).astype(np.int64)
    part = Split(images, labels)
    return DataSet("stand-in", part, part, tuple(map(str, range(classes))))
