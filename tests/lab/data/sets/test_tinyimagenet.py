"""TinyImageNet: its folders, its zip, its table of validation pictures."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.lab.data.miniatures import BLUE, GREEN, RED, colours

from drcl.lab.data import DataError, load


@pytest.fixture
def tiny(root: Path, picture: Callable) -> Path:
    home = root / "tiny-imagenet-200"
    for name, colour in (("n02", GREEN), ("n01", RED)):
        for i in range(2):
            picture(home / "train" / name / "images" / f"{name}_{i}.png", colour)
    picture(home / "val" / "images" / "val_0.png", GREEN)
    picture(home / "val" / "images" / "val_1.png", RED)
    picture(home / "test" / "images" / "test_0.png", BLUE)
    (home / "val" / "val_annotations.txt").write_text("val_0.png\tn02\t0\t0\t1\t1\nval_1.png\tn01\t0\t0\t1\t1\n")
    (home / "words.txt").write_text("n01\tgoldfish, Carassius\nn02\ttoad\n")
    return home


def test_tinyimagenet_takes_val_as_test(tiny: Path) -> None:
    data = load("tinyimagenet")
    assert data.train.images.shape == (4, 3, 64, 64)
    assert colours(data.train.images) == [RED, RED, GREEN, GREEN]
    assert data.train.labels.tolist() == [0, 0, 1, 1]
    assert colours(data.test.images) == [GREEN, RED]
    assert data.test.labels.tolist() == [1, 0]
    assert data.classes == ("goldfish", "toad")


def test_tinyimagenet_shrinks_bicubically(tiny: Path, pixels: Callable) -> None:
    original = Image.fromarray(pixels(64, 64, 3))
    original.save(tiny / "train" / "n01" / "images" / "n01_0.png")
    shrunk = load("tinyimagenet", size=32).train.images[0]
    expected = np.asarray(original.resize((32, 32), Image.Resampling.BICUBIC)).transpose(2, 0, 1)
    np.testing.assert_array_equal(shrunk, expected)


def test_tinyimagenet_with_val_sorted_into_classes(tiny: Path) -> None:
    for name, file in (("n02", "val_0.png"), ("n01", "val_1.png")):
        (tiny / "val" / name).mkdir()
        (tiny / "val" / "images" / file).rename(tiny / "val" / name / file)
    (tiny / "val" / "val_annotations.txt").unlink()
    assert load("tinyimagenet").test.labels.tolist() == [0, 1]


def test_tinyimagenet_from_its_zip(tiny: Path, root: Path) -> None:
    with zipfile.ZipFile(root / "tiny-imagenet-200.zip", "w") as archive:
        for path in tiny.rglob("*"):
            archive.write(path, path.relative_to(root))
    tiny.rename(root.parent / "aside")
    assert colours(load("tinyimagenet").test.images) == [GREEN, RED]


def test_tinyimagenet_faults(tiny: Path) -> None:
    notes = tiny / "val" / "val_annotations.txt"
    notes.write_text("val_0.png\tn09\t0\t0\t1\t1\n")
    with pytest.raises(DataError, match=r"line 1: .* does not name a picture and a known class"):
        load("tinyimagenet")
    notes.write_text("val_7.png\tn01\t0\t0\t1\t1\n")
    with pytest.raises(DataError, match=r"names val_7.png, which is not in"):
        load("tinyimagenet")
    notes.write_text("val_0.png\tn02\n")
    (tiny / "train" / "n01" / "images" / "n01_1.png").write_bytes(b"\x89PNG\r\n\x1a\n broken")
    with pytest.raises(DataError, match=r"n01_1.png is not a readable picture"):
        load("tinyimagenet")
