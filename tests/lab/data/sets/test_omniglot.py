"""Omniglot: characters split by drawer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from drcl.lab.data import DataError, load


def test_omniglot_by_drawer(root: Path) -> None:
    for part, alphabet in (("images_background", "Greek"), ("images_evaluation", "Tengwar")):
        for character in ("character01", "character02"):
            folder = root / "omniglot" / part / alphabet / character
            folder.mkdir(parents=True)
            for drawer in (1, 15, 16, 20):
                page = Image.new("1", (105, 105), 1)
                page.paste(0, (0, 0, drawer, 105))  # a black bar as wide as the drawer's number
                page.save(folder / f"0001_{drawer:02}.png")
    data = load("omniglot", size=105)
    assert len(data.train) == len(data.test) == 8
    assert data.train.groups is not None
    assert data.train.groups.tolist() == [1, 15] * 4
    assert data.test.groups is not None
    assert data.test.groups.tolist() == [16, 20] * 4
    assert data.test.labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    np.testing.assert_array_equal((data.train.images[1, 0] == 255).sum(1), 15)  # ink is bright
    assert data.classes[2] == "Tengwar/character01"
    (root / "omniglot" / "images_background" / "Greek" / "character01" / "x.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"is not named like 0001_01.png"):
        load("omniglot")
