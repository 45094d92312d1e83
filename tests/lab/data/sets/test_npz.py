"""Your own arrays in an .npz, in every layout."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from drcl.lab.data import DataError, MissingData, load


def test_npz_channels_last(root: Path, arrays: dict[str, np.ndarray]) -> None:
    np.savez(root / "mine.npz", **arrays)
    data = load("npz", path=root / "mine.npz")
    np.testing.assert_array_equal(data.train.images, arrays["train_images"].transpose(0, 3, 1, 2))
    np.testing.assert_array_equal(data.test.labels, [2, 1, 0])
    assert data.train.labels.dtype == np.int64
    assert data.classes == ("ant", "bee", "cat")
    assert data.name == "mine"
    assert data.train.images.flags.c_contiguous


def test_npz_other_layouts(root: Path, arrays: dict[str, np.ndarray], pixels: Callable) -> None:
    first = {k: v.transpose(0, 3, 1, 2) if v.ndim == 4 else v for k, v in arrays.items()}
    np.savez(root / "first.npz", **first)
    np.savez(root / "last.npz", **arrays)
    np.testing.assert_array_equal(load("npz", path="first.npz").train.images, load("npz", path="last.npz").train.images)
    grey = {k: v[..., 0] if v.ndim == 4 else v for k, v in arrays.items() if k != "classes"}
    np.savez_compressed(root / "grey.npz", **grey)
    data = load("npz", path="grey.npz")
    np.testing.assert_array_equal(data.test.images[:, 0], arrays["test_images"][..., 0])
    assert data.classes == ("0", "1", "2")
    tiny = dict(arrays, train_images=pixels(6, 3, 5, 3), test_images=pixels(3, 3, 5, 3))
    np.savez(root / "tiny.npz", **tiny)
    with pytest.raises(DataError, match="could be NHWC or NCHW; say layout="):
        load("npz", path="tiny.npz")
    assert load("npz", path="tiny.npz", layout="NCHW").train.images.shape == (6, 3, 5, 3)
    assert load("npz", path="tiny.npz", layout="NHWC").train.images.shape == (6, 3, 3, 5)


def test_npz_damaged_or_absent(root: Path, arrays: dict[str, np.ndarray]) -> None:
    np.savez(root / "cut.npz", **arrays)
    (root / "cut.npz").write_bytes((root / "cut.npz").read_bytes()[:-200])
    with pytest.raises(DataError, match=r"is not a readable .npz file"):
        load("cut")
    with pytest.raises(MissingData, match="there is no such file"):
        load("npz", path="absent.npz")
