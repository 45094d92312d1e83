"""Arrays in a file: scaled, checked, never unpickled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from drcl.lab.data import DataError, load


def test_float_values_are_scaled(root: Path, arrays: dict[str, np.ndarray]) -> None:
    scaled = {k: v / 255.0 if v.ndim == 4 else v for k, v in arrays.items()}
    np.savez(root / "float.npz", **scaled)
    np.testing.assert_array_equal(load("float").train.images, arrays["train_images"].transpose(0, 3, 1, 2))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"train_labels": None}, "has no array 'train_labels'; it has classes, test_images"),
        ({"train_labels": np.array([0, 1])}, r"shape \(2,\) for 6 images"),
        ({"train_labels": np.full(6, -1)}, "has the label -1; labels count from 0"),
        ({"train_labels": np.full(6, 0.5)}, "labels are whole numbers"),
        ({"train_labels": np.full(6, 3)}, "names 3 classes but its labels go up to 3"),
        ({"train_images": np.zeros((6, 7))}, r"shape \(6, 7\); wanted NHW, NHWC or NCHW"),
        ({"train_images": np.full((6, 12, 10, 3), -1.5)}, "floats must lie in 0..1 .undo any normalisation."),
        ({"train_images": np.full((6, 12, 10, 3), 256)}, "int64 values from 256 to 256"),
        ({"train_images": np.zeros((6, 9, 9, 3), np.uint8)}, "both parts need one shape"),
    ],
)
def test_npz_faults(root: Path, arrays: dict[str, np.ndarray], change: dict, sentence: str) -> None:
    np.savez(root / "bad.npz", **{k: v for k, v in (arrays | change).items() if v is not None})
    with pytest.raises(DataError, match=sentence):
        load("npz", path=root / "bad.npz")


def test_an_npz_with_a_pickle_is_not_opened(root: Path, arrays: dict[str, np.ndarray], tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple:
            return (Path.touch, (tmp_path / "exploded",))

    np.savez(root / "bad.npz", **arrays | {"classes": np.array([Bomb()], object)})
    with pytest.raises(DataError, match="holds a pickle, and opening a pickle can run code"):
        load("bad")
    assert not (tmp_path / "exploded").exists()
