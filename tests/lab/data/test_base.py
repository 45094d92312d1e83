"""What a data set is once it is read."""

from __future__ import annotations

import numpy as np

from drcl.lab.data.base import DataSet, Split


def test_a_split_is_as_long_as_its_images_and_copies_nothing() -> None:
    images = np.zeros((3, 1, 2, 2), np.uint8)
    split = Split(images, np.arange(3))
    assert len(split) == 3
    assert split.images is images
    data = DataSet("x", split, split, ("a", "b", "c"))
    assert data.valid is None
    assert not data.synthetic
