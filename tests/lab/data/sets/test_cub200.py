"""CUB-200: pictures by its text files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.lab.data.miniatures import BLUE, GREEN, RED

from drcl.lab.data import DataError, load


@pytest.fixture
def cub(root: Path, picture: Callable) -> Path:
    home = root / "cub200" / "CUB_200_2011"
    files = {1: ("001.Black_footed_Albatross/a.jpg", RED), 2: ("001.Black_footed_Albatross/b.jpg", GREEN)}
    files |= {10: ("002.Laysan_Albatross/c.jpg", BLUE), 3: ("002.Laysan_Albatross/d.jpg", RED)}
    for name, colour in files.values():
        picture(home / "images" / name, colour, (40, 20))
    (home / "images.txt").write_text("".join(f"{i} {name}\n" for i, (name, _) in files.items()))
    (home / "image_class_labels.txt").write_text("1 1\n2 1\n10 2\n3 2\n")
    (home / "train_test_split.txt").write_text("1 1\n2 0\n10 1\n3 0\n")
    (home / "classes.txt").write_text("1 001.Black_footed_Albatross\n2 002.Laysan_Albatross\n")
    return home


def test_cub200_by_its_text_files(cub: Path) -> None:
    data = load("cub200", size=8)
    assert data.train.images.shape == (2, 3, 8, 8)
    assert data.train.labels.tolist() == [0, 1]
    assert data.test.labels.tolist() == [0, 1]
    assert data.train.images[1, 2].min() > 250  # picture 10 is blue and comes after picture 1
    assert data.classes == ("Black footed Albatross", "Laysan Albatross")


def test_cub200_faults(cub: Path) -> None:
    (cub / "train_test_split.txt").write_text("1 1\n2 0\n")
    with pytest.raises(DataError, match="do not list the same pictures"):
        load("cub200")
    (cub / "train_test_split.txt").write_text("1 1\n2 0\n10 1\n3 0\n")
    (cub / "image_class_labels.txt").write_text("1 1\n2 1\n10 7\n3 2\n")
    with pytest.raises(DataError, match="gives picture 10 the unknown class 7"):
        load("cub200")
    (cub / "images.txt").write_text("one a.jpg\n")
    with pytest.raises(DataError, match=r"line 1: 'one a.jpg' is not a number and a value"):
        load("cub200")
