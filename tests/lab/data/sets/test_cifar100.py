"""CIFAR-100: fine and coarse labels, their names, and wrong options."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.lab.data.miniatures import cifar_rows

from drcl.lab.data import DataError, load


def write_cifar100(folder: Path, images: np.ndarray, coarse: np.ndarray, fine: np.ndarray) -> None:
    folder.mkdir(parents=True)
    both = np.stack([coarse, fine], 1)
    (folder / "train.bin").write_bytes(cifar_rows(both, images))
    (folder / "test.bin").write_bytes(cifar_rows(both[::-1], images[::-1]))


def test_cifar100_fine_and_coarse(root: Path, pixels: Callable) -> None:
    images, coarse, fine = pixels(4, 3, 32, 32), np.array([4, 1, 19, 4]), np.array([0, 1, 99, 51])
    write_cifar100(root / "cifar-100-binary", images, coarse, fine)
    (root / "cifar-100-binary" / "coarse_label_names.txt").write_text("\n".join(f"group{i}" for i in range(20)))
    data = load("cifar100")
    np.testing.assert_array_equal(data.train.images, images)
    np.testing.assert_array_equal(data.train.labels, fine)
    np.testing.assert_array_equal(data.test.labels, fine[::-1])
    assert len(data.classes) == 100
    data = load("cifar100", labels="coarse")
    np.testing.assert_array_equal(data.train.labels, coarse)
    assert data.classes[19] == "group19"


def test_cifar100_wrong_options_and_names(root: Path, pixels: Callable) -> None:
    write_cifar100(root / "cifar100", pixels(2, 3, 32, 32), np.zeros(2, int), np.zeros(2, int))
    with pytest.raises(DataError, match="labels='rough' is not one of cifar100's: fine, coarse"):
        load("cifar100", labels="rough")
    with pytest.raises(DataError, match="cifar100 has no option 'split'; it has labels"):
        load("cifar100", split="test")
    (root / "cifar100" / "fine_label_names.txt").write_text("apple\npear\n")
    with pytest.raises(DataError, match="has 2 names, cifar100 has 100 fine classes"):
        load("cifar100")
