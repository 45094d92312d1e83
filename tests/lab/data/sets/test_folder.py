"""Your own folder of pictures, one folder per class."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from drcl.lab.data import DataError, load


def test_a_small_set_stays_in_memory(folder: Path, root: Path) -> None:
    data = load("folder", path=folder)
    assert not isinstance(data.train.images, np.memmap)
    assert data.train.images[:, 0, 0, 0].tolist() == [0, 2, 4, 1, 3, 5]
    assert data.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.classes == ("cats", "dogs")
    assert data.name == "own"
    assert not (root / ".drcl").exists()


def test_grey_pictures(folder: Path) -> None:
    data = load("folder", path=folder, channels=1)
    # ITU-R 601: 0.299 R + 0.587 G + 0.114 B of (4, 40, 100) is 36.076.
    assert data.train.images[2, 0, 0, 0] == 36
    with pytest.raises(DataError, match="channels=2 must be 1"):
        load("folder", path=folder, channels=2)


def test_valid_beside_test(folder: Path, picture: Callable) -> None:
    picture(folder / "val" / "cats" / "v.png", (9, 9, 9), (9, 9))
    data = load("folder", path=folder)
    assert data.valid is not None
    assert data.valid.images[0, 0, 0, 0] == 9
    assert len(data.test) == 2


def test_folder_faults(folder: Path, root: Path) -> None:
    with pytest.raises(DataError, match="there is no such folder"):
        load("folder", path=root / "absent")
    with pytest.raises(DataError, match="folder needs the option 'path'"):
        load("folder")
    (folder / "test" / "horses").mkdir()
    with pytest.raises(DataError, match=r"is a class that .* does not have"):
        load("folder", path=folder)
    (folder / "train").rename(folder / "training")
    with pytest.raises(DataError, match="needs folders train and test"):
        load("folder", path=folder)


def test_a_path_inside_the_data_folder(folder: Path) -> None:
    assert len(load("folder", path="own").train) == 6
