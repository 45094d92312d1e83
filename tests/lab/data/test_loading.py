"""From a name to a data set: files that stand in, and names that do not exist."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from drcl.lab.data import DataError, MissingData, load


def test_any_npz_in_the_data_folder_has_a_name(root: Path, arrays: dict[str, np.ndarray]) -> None:
    np.savez(root / "birds.npz", **arrays)
    data = load("birds")
    assert data.name == "birds"
    assert len(data.train) == 6
    with pytest.raises(DataError, match="birds has no option 'size'; it has layout"):
        load("birds", size=3)


def test_arrays_stand_in_for_a_set_that_is_not_there(root: Path, pixels: Callable) -> None:
    parts = {"train_images": pixels(4, 28, 28), "test_images": pixels(2, 28, 28)}
    parts |= {"train_labels": np.zeros(4, int), "test_labels": np.zeros(2, int)}
    np.savez(root / "omniglot28.npz", **parts)
    assert load("omniglot").train.images.shape == (4, 1, 28, 28)
    with pytest.raises(MissingData, match=r"omniglot28.npz has smaller images than size=32"):
        load("omniglot", size=32)
    small = load("omniglot", size=14).train.images
    expected = Image.fromarray(parts["train_images"][3]).resize((14, 14), Image.Resampling.BICUBIC)
    np.testing.assert_array_equal(small[3, 0], np.asarray(expected))
    np.savez(root / "cub200_64.npz", **parts)
    with pytest.raises(DataError, match="fit='crop' needs cub200's official files"):
        load("cub200", fit="crop")
    np.savez(root / "cifar100.npz", **parts)
    with pytest.raises(MissingData):
        load("cifar10")  # another set whose name only begins the same
    assert load("cifar100").train.images.shape == (4, 1, 28, 28)


def test_unknown_names(root: Path) -> None:
    with pytest.raises(DataError, match=r"no data set 'minst'; did you mean 'mnist'\? Known: casia-hwdb, celeba"):
        load("minst")
