"""scikit-learn's digits: 1,797 scans of 8x8, the embedded default; nothing has to be fetched."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from drcl.lab.data.base import DataSet, Split
from drcl.lab.data.registry import data_set

LEVELS = 16  # the scans count ink in 0..16


@data_set(
    "digits",
    "digits in scikit-learn",
    classes="10",
    images="1,797",
    size="8x8",
    embedded=True,
    counts={"train": 1_442, "test": 355},
)
def digits(root: Path) -> DataSet:
    """Images [N, 1, 8, 8] with ink k of 16 stored as round(255 k / 16).

    The set has no official split. Here every fifth drawing of each digit, in the set's order, is for testing:
    1,442 to train and 355 to test, the digits evenly shared, the same on every machine.
    """
    from sklearn.datasets import load_digits

    bunch = load_digits()
    labels = np.asarray(bunch.target, np.int64)
    images = np.rint(np.asarray(bunch.images) * (255 / LEVELS)).astype(np.uint8)[:, None]
    nth = np.zeros(len(labels), np.int64)
    for digit in range(10):
        of_digit = labels == digit
        nth[of_digit] = np.arange(of_digit.sum())
    test = nth % 5 == 4
    return DataSet(
        "digits",
        Split(images[~test], labels[~test]),
        Split(images[test], labels[test]),
        tuple(str(digit) for digit in range(10)),
    )
