"""LEAF's FEMNIST: writers are groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from drcl.lab.data import MissingData, load


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


@pytest.mark.parametrize("name", ["leaf-femnist", "leaf-celeba"])
def test_missing(root: Path, name: str) -> None:
    with pytest.raises(MissingData, match=r"preprocess.sh of https://github.com/TalwalkarLab/leaf"):
        load(name)
