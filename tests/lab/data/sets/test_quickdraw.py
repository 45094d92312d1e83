"""Quick, Draw! from official bitmaps and from a package."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from drcl.lab.data import DataError, MissingData, load
from drcl.lab.data.formats.quickdraw_names import NAMES
from drcl.lab.data.sets import quickdraw


def test_quickdraw_official_bitmaps(root: Path, pixels: Callable) -> None:
    folder = root / "quickdraw"
    folder.mkdir()
    tables = pixels(345, 10, 784)
    for name, table in zip(NAMES, tables, strict=True):
        np.save(folder / f"full_numpy_bitmap_{name}.npy", table)
    data = load("quickdraw")
    assert data.train.images.shape == (345 * 8, 1, 28, 28)
    np.testing.assert_array_equal(data.train.images[8:16].reshape(8, 784), tables[1, :8])
    np.testing.assert_array_equal(data.test.images[2:4].reshape(2, 784), tables[1, 8:])
    assert data.test.labels[:5].tolist() == [0, 0, 1, 1, 2]
    assert len(load("quickdraw", per_class=5).train) == 345 * 4
    with pytest.raises(DataError, match="per_class=1 must be at least 2"):
        load("quickdraw", per_class=1)
    path = folder / f"full_numpy_bitmap_{NAMES[7]}.npy"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"is not a readable .npy file"):
        load("quickdraw")
    path.unlink()
    with pytest.raises(MissingData, match="drcl data fetch quickdraw"):
        load("quickdraw")


def test_quickdraw_package_values_become_the_bytes_they_were(tmp_path: Path) -> None:
    drawing = np.arange(784) % 256
    stored = [round(value / 256, 3) for value in drawing.tolist()]
    (tmp_path / "ant.ndjson.gz").write_bytes(gzip.compress((json.dumps(stored) + "\n").encode() * 2))
    quickdraw.from_package(tmp_path)
    np.testing.assert_array_equal(np.load(tmp_path / "ant.npy"), [drawing, drawing])
    assert [path.name for path in tmp_path.iterdir()] == ["ant.npy"]


def test_quickdraw_heads_of_official_files_are_trimmed(tmp_path: Path, pixels: Callable) -> None:
    table = pixels(50, 784)
    np.save(tmp_path / "ant.npy", table)
    head = (tmp_path / "ant.npy").read_bytes()[: 128 + 20 * 784 + 100]
    (tmp_path / "ant.npy").write_bytes(head)
    quickdraw.trim(tmp_path)
    np.testing.assert_array_equal(np.load(tmp_path / "ant.npy"), table[:20])
    (tmp_path / "ant.npy").write_bytes(b"<html>not found</html>")
    with pytest.raises(DataError, match=r"ant.npy is not a .npy file"):
        quickdraw.trim(tmp_path)
