"""LEAF's JSON, for characters and for faces."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from drcl.lab.data import DataError, MissingData, load


def leaf(users: dict[str, tuple[list, list]]) -> str:
    data = {user: {"x": x, "y": y} for user, (x, y) in users.items()}
    return json.dumps({"users": list(users), "num_samples": [len(y) for _, y in users.values()], "user_data": data})


@pytest.fixture
def femnist(root: Path) -> Path:
    home = root / "leaf-femnist"
    (home / "train").mkdir(parents=True)
    (home / "test").mkdir()
    white = [1.0] * 784
    inked = [0.0, 128 / 255] + [1.0] * 782
    (home / "train" / "all_data_0.json").write_text(leaf({"f0002_33": ([white, inked], [0, 61])}))
    (home / "train" / "all_data_1.json").write_text(leaf({"f0001_12": ([inked], [10])}))
    (home / "test" / "all_data_0.json").write_text(leaf({"f0002_33": ([white], [36])}))
    return home


def test_femnist(femnist: Path) -> None:
    data = load("leaf-femnist")
    assert data.train.images.shape == (3, 1, 28, 28)
    assert data.train.images[1, 0, 0, :3].tolist() == [0, 128, 255]
    assert data.train.labels.tolist() == [0, 61, 10]
    assert data.train.groups is not None
    assert data.train.groups.tolist() == [1, 1, 0]  # writers by name, over every file
    assert data.test.groups is not None
    assert data.test.groups.tolist() == [1]
    assert [data.classes[i] for i in (0, 10, 36, 61)] == ["0", "A", "a", "z"]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ('{"users": ["a"', "is not JSON"),
        ('{"people": []}', "it is not a LEAF file"),
        ('{"users": ["a"], "user_data": {}}', "lists the user 'a' but has no data"),
        (leaf({"a": ([[0.0] * 784], [])}), "has 1 inputs but 0 labels"),
        (leaf({"a": ([[0.0] * 783], [1])}), "does not have 784 values"),
        (leaf({"a": ([[0.0] * 784], [62])}), "labels 62 to 62; wanted 0 to 61"),
        (leaf({"a": ([[2.0] * 784], [1])}), "floats must lie in 0..1"),
        (leaf({}), "there are no samples"),
    ],
)
def test_femnist_faults(femnist: Path, content: str, sentence: str) -> None:
    (femnist / "train" / "all_data_1.json").unlink()
    (femnist / "train" / "all_data_0.json").write_text(content)
    with pytest.raises(DataError, match=sentence):
        load("leaf-femnist")


def test_celeba(root: Path, picture: Callable) -> None:
    home = root / "leaf-celeba" / "data"
    for i, grey in ((1, 10), (2, 200), (3, 90)):
        picture(home / "raw" / "img_align_celeba" / f"{i:06}.jpg", (grey, grey, grey), (178, 218))
    (home / "train").mkdir()
    (home / "test").mkdir()
    (home / "train" / "a.json").write_text(leaf({"2880": (["000002.jpg", "000001.jpg"], [1, 0])}))
    (home / "test" / "a.json").write_text(leaf({"2937": (["000003.jpg"], [1])}))
    data = load("leaf-celeba", size=8)
    np.testing.assert_allclose(data.train.images[:, 0].mean((1, 2)), [200, 10], atol=2)  # JPEG
    assert data.train.labels.tolist() == [1, 0]
    assert data.test.groups is not None
    assert data.test.groups.tolist() == [1]
    assert data.classes == ("not smiling", "smiling")
    (home / "test" / "a.json").write_text(leaf({"2937": (["000009.jpg"], [1])}))
    with pytest.raises(DataError, match=r"names 000009.jpg, which is not in"):
        load("leaf-celeba")


@pytest.mark.parametrize("name", ["leaf-femnist", "leaf-celeba"])
def test_missing(root: Path, name: str) -> None:
    with pytest.raises(MissingData, match=r"preprocess.sh of https://github.com/TalwalkarLab/leaf"):
        load(name)
