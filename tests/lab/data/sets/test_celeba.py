"""CelebA: its partition, its attributes, whole or cut pictures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.lab.data.miniatures import BLUE, GREEN, RED

from drcl.lab.data import DataError, MissingData, load


@pytest.fixture
def celeba(root: Path, picture: Callable) -> Path:
    home = root / "celeba"
    for i, colour in enumerate((RED, GREEN, BLUE, RED), 1):
        picture(home / "img_align_celeba" / f"{i:06}.jpg", colour, (178, 218))
    lines = ["4", " ".join(f"Attribute_{i}" for i in range(40))]
    for i in range(1, 5):
        lines.append(f"{i:06}.jpg " + " ".join("1" if j % i == 0 else "-1" for j in range(40)))
    (home / "list_attr_celeba.txt").write_text("\n".join(lines) + "\n")
    (home / "list_eval_partition.txt").write_text("000001.jpg 0\n000002.jpg 1\n000003.jpg 2\n000004.jpg 0\n")
    return home


def test_celeba_partition_and_attributes(celeba: Path) -> None:
    data = load("celeba", size=16)
    assert data.train.images.shape == (2, 3, 16, 16)
    assert data.valid is not None
    assert len(data.valid) == len(data.test) == 1
    assert data.train.labels.shape == (2, 40)
    assert data.train.labels[1].tolist() == [int(j % 4 == 0) for j in range(40)]
    assert data.test.labels[0].tolist() == [int(j % 3 == 0) for j in range(40)]
    assert data.test.images[0, 2].min() > 250  # picture 3 is blue
    assert data.classes[39] == "Attribute_39"
    assert data.train.groups is None
    (celeba / "identity_CelebA.txt").write_text("".join(f"{i:06}.jpg {70 + i}\n" for i in range(1, 5)))
    groups = load("celeba", size=16).train.groups
    assert groups is not None
    assert groups.tolist() == [71, 74]


def test_celeba_whole_pictures(celeba: Path) -> None:
    assert load("celeba", size=None).train.images.shape == (2, 3, 218, 178)


def test_celeba_faults(celeba: Path) -> None:
    attributes = celeba / "list_attr_celeba.txt"
    good = attributes.read_text()
    attributes.write_text(good.replace("4\n", "5\n", 1))
    with pytest.raises(DataError, match="announces 5 pictures but lists 4; it is truncated"):
        load("celeba")
    attributes.write_text(good.replace("000002.jpg 1 -1", "000002.jpg 2 -1"))
    with pytest.raises(DataError, match="line 4: wanted 40 values of 1 or -1"):
        load("celeba")
    attributes.write_text(good)
    (celeba / "img_align_celeba" / "000003.jpg").unlink()
    with pytest.raises(DataError, match=r"000003.jpg is in the attribute list but not in the folder"):
        load("celeba")
    (celeba / "list_eval_partition.txt").unlink()
    with pytest.raises(MissingData, match=r"lacks the file list_eval_partition.txt"):
        load("celeba")
