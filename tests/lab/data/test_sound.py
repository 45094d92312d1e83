"""The last look at what a reader returned."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from drcl.lab.data import DataError, DataSet, Split
from drcl.lab.data.sound import sound

IMAGES = np.zeros((4, 1, 3, 3), np.uint8)
LABELS = np.array([0, 1, 1, 0])
GOOD = DataSet("mine", Split(IMAGES, LABELS), Split(IMAGES[:2], LABELS[:2]), ("no", "yes"))


def test_a_data_set_passes_as_it_is():
    assert sound(GOOD) is GOOD
    attributes = Split(IMAGES, np.eye(4, dtype=np.int64), np.arange(4))
    names = tuple("abcd")
    assert sound(DataSet("mine", attributes, attributes, names, valid=attributes)).valid is attributes


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"images": IMAGES.astype(np.float32)}, r"mine test has images float32 \(4, 1, 3, 3\); wanted uint8"),
        (
            {"images": IMAGES[:0], "labels": LABELS[:0]},
            r"mine test holds no images, or images without pixels",
        ),
        ({"labels": LABELS[:3]}, r"mine test has 4 images but labels int64 \(3,\)"),
        ({"labels": LABELS.astype(np.int32)}, r"mine test has 4 images but labels int32"),
        ({"labels": LABELS + 1}, r"mine test has labels 1 to 2; it has 2 classes, from 0"),
        ({"labels": LABELS - 1}, r"mine test has labels -1 to 0; it has 2 classes"),
        ({"labels": np.full((4, 2), 3)}, r"mine test has attributes \(4, 2\) that are not 0 or 1 for each of 2 names"),
        ({"labels": np.ones((4, 2), np.int64)}, r"mine: test has other kinds of labels than train"),
        ({"images": np.zeros((4, 1, 3, 5), np.uint8)}, r"train images are \(1, 3, 3\) but test images \(1, 3, 5\)"),
        ({"groups": np.arange(3)}, r"mine test has groups int64 \(3,\); wanted one whole number per image"),
    ],
)
def test_what_is_no_data_set_is_refused_by_its_part(change, sentence):
    with pytest.raises(DataError, match=sentence):
        sound(replace(GOOD, test=replace(Split(IMAGES, LABELS), **change)))


def test_names_cannot_steer_a_terminal():
    with pytest.raises(DataError, match="a name with control characters; rename it"):
        sound(replace(GOOD, classes=("no", "yes\x1b[2J")))
