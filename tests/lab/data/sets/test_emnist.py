"""EMNIST: its six splits, turned upright, with the names of the paper."""

from __future__ import annotations

import gzip
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from drcl.lab.data import DataError, MissingData, load

SPLITS = {"byclass": 62, "bymerge": 47, "balanced": 47, "letters": 26, "digits": 10, "mnist": 10}


@pytest.mark.parametrize("split", SPLITS)
def test_every_emnist_split_is_turned_upright(split: str, root: Path, idx: Callable) -> None:
    first = 1 if split == "letters" else 0
    stored = np.zeros((SPLITS[split], 28, 28), np.uint8)
    stored[:, 2, 5] = 200  # row 2, column 5 of the file is row 5, column 2 of the picture
    labels = np.arange(SPLITS[split]) + first
    folder = root / "emnist" / "gzip"
    folder.mkdir(parents=True)
    for part in ("train", "test"):
        (folder / f"emnist-{split}-{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(stored)))
        (folder / f"emnist-{split}-{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels)))
    data = load("emnist", split=split)
    assert data.train.images[0, 0, 5, 2] == 200
    assert data.train.images[0].sum() == 200
    assert data.train.images.flags.c_contiguous
    np.testing.assert_array_equal(data.train.labels, np.arange(SPLITS[split]))
    assert len(data.classes) == SPLITS[split]


def test_emnist_class_names_follow_the_paper(root: Path, idx: Callable) -> None:
    from drcl.lab.data.sets.emnist import CLASSES

    assert CLASSES["byclass"][10] == "A"
    assert CLASSES["byclass"][36] == "a"
    assert CLASSES["balanced"][36:] == "abdefghnqrt"  # the letters whose two forms differ
    assert CLASSES["letters"][0] == "a"


def test_emnist_archive_is_unpacked_where_it_lies(root: Path, idx: Callable, pixels: Callable) -> None:
    images, labels = pixels(4, 28, 28), np.array([1, 2, 26, 1])
    with zipfile.ZipFile(root / "gzip.zip", "w") as archive:
        for part in ("train", "test"):
            archive.writestr(f"gzip/emnist-letters-{part}-images-idx3-ubyte.gz", gzip.compress(idx(images)))
            archive.writestr(f"gzip/emnist-letters-{part}-labels-idx1-ubyte.gz", gzip.compress(idx(labels)))
    data = load("emnist", split="letters")
    np.testing.assert_array_equal(data.test.images[:, 0], images.transpose(0, 2, 1))
    np.testing.assert_array_equal(data.test.labels, labels - 1)
    with pytest.raises(MissingData, match="'digits' is not in"):
        load("emnist", split="digits")
    with pytest.raises(DataError, match="split='upper' is not one of"):
        load("emnist", split="upper")
