"""LEAF's CelebA: pictures named in JSON."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.lab.data.miniatures import leaf_json

from drcl.lab.data import DataError, load


def test_celeba(root: Path, picture: Callable) -> None:
    home = root / "leaf-celeba" / "data"
    for i, grey in ((1, 10), (2, 200), (3, 90)):
        picture(home / "raw" / "img_align_celeba" / f"{i:06}.jpg", (grey, grey, grey), (178, 218))
    (home / "train").mkdir()
    (home / "test").mkdir()
    (home / "train" / "a.json").write_text(leaf_json({"2880": (["000002.jpg", "000001.jpg"], [1, 0])}))
    (home / "test" / "a.json").write_text(leaf_json({"2937": (["000003.jpg"], [1])}))
    data = load("leaf-celeba", size=8)
    np.testing.assert_allclose(data.train.images[:, 0].mean((1, 2)), [200, 10], atol=2)  # JPEG
    assert data.train.labels.tolist() == [1, 0]
    assert data.test.groups is not None
    assert data.test.groups.tolist() == [1]
    assert data.classes == ("not smiling", "smiling")
    (home / "test" / "a.json").write_text(leaf_json({"2937": (["000009.jpg"], [1])}))
    with pytest.raises(DataError, match=r"names 000009.jpg, which is not in"):
        load("leaf-celeba")
