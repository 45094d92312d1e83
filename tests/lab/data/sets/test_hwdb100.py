"""The 100-class subset of CASIA-HWDB as arrays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from drcl.lab.data import MissingData, load


def test_arrays_in_its_own_folder_or_beside(root: Path, pixels: Callable) -> None:
    with pytest.raises(MissingData, match=r"make hwdb100.npz \(arrays"):
        load("hwdb100")
    parts = {"train_images": pixels(4, 32, 32), "test_images": pixels(2, 32, 32, seed=1)}
    parts |= {"train_labels": np.array([0, 99, 5, 5]), "test_labels": np.array([1, 99])}
    (root / "hwdb100").mkdir()
    np.savez(root / "hwdb100" / "hwdb100.npz", **parts)
    data = load("hwdb100")
    np.testing.assert_array_equal(data.train.images[:, 0], parts["train_images"])
    assert data.test.labels.tolist() == [1, 99]
    assert data.name == "hwdb100"
    (root / "hwdb100" / "hwdb100.npz").rename(root / "hwdb100.npz")
    assert len(load("hwdb100").train) == 4
