"""Digits, Quick, Draw! and rendered Chinese characters."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from drcl.lab.data import DataError, MissingData, load
from drcl.lab.data.formats import handwriting
from drcl.lab.data.formats.quickdraw_names import NAMES
from drcl.lab.data.sets import hanzi, quickdraw


def test_digits_are_scikit_learns(root: Path) -> None:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    data = load("digits")
    assert data.train.images.shape[1:] == (1, 8, 8)
    assert len(data.train) == 1442
    # Each digit n times gives floor(n / 5) test images: 178, 182, 177, ... in the set's description.
    assert np.bincount(data.test.labels).tolist() == [35, 36, 35, 36, 36, 36, 36, 35, 34, 36]
    # Every scan is there exactly once, and its ink can be recovered.
    both = np.concatenate([data.train.images, data.test.images])[:, 0]
    back = np.rint(both * (16 / 255)).astype(int).reshape(-1, 64)
    assert sorted(map(tuple, back.tolist())) == sorted(map(tuple, bunch.data.astype(int).tolist()))
    assert both.max() == 255
    first_zeros = np.flatnonzero(bunch.target == 0)
    np.testing.assert_array_equal(data.test.images[data.test.labels == 0][0, 0] > 0, bunch.images[first_zeros[4]] > 0)


def test_quickdraw_names() -> None:
    assert len(NAMES) == len(set(NAMES)) == 345
    assert tuple(sorted(NAMES)) == NAMES
    assert "basketball" in NAMES
    assert "The Eiffel Tower" in NAMES


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


# A cross and a bar: the first stroke runs left to right at mid height, the second from top to bottom.
MEDIANS = {
    "十": [[[100, 388], [924, 388]], [[512, 800], [512, -24]]],
    "一": [[[100, 388], [500, 390], [924, 388]]],
    "丨": [[[512, 800], [512, -24]]],
    "龍": [[[100, 388], [924, 388]]],
}


@pytest.fixture
def strokes(root: Path) -> Path:
    (root / "hanzi").mkdir()
    (root / "hanzi" / "medians.json").write_text(json.dumps(MEDIANS))
    return root / "hanzi"


def test_hanzi_shape_split_and_label(strokes: Path) -> None:
    data = load("hanzi", classes=3, writers=4, test_writers=1, size=24)
    assert data.synthetic
    assert data.train.images.shape == (9, 1, 24, 24)
    assert data.test.images.shape == (3, 1, 24, 24)
    assert data.train.labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert data.train.groups is not None
    assert data.train.groups.tolist() == [0, 1, 2] * 3
    assert data.test.groups is not None
    assert data.test.groups.tolist() == [3, 3, 3]
    assert data.classes == ("十", "一", "丨")  # GB2312: common CAAE and D2BB, then rare D8AD


def test_hanzi_pictures_follow_the_strokes(strokes: Path) -> None:
    data = load("hanzi", classes=3, writers=20, test_writers=10)
    ink = 255.0 - np.concatenate([data.train.images, data.test.images])[:, 0]
    labels = np.concatenate([data.train.labels, data.test.labels])
    rows, columns = ink.sum(2), ink.sum(1)
    bar, post = labels == 1, labels == 2
    # The bar's ink lies in few rows and many columns, the post's in few columns and many rows.
    assert ((rows[bar] > 0).sum(1) < (columns[bar] > 0).sum(1)).all()
    assert ((rows[post] > 0).sum(1) > (columns[post] > 0).sum(1)).all()
    assert (ink[labels == 0].sum((1, 2)) > ink[bar].sum((1, 2)) * 1.2).all()
    np.testing.assert_allclose(np.argmax(rows[bar].mean(0)), 16, atol=2)


def test_hanzi_same_seed_same_pictures_other_seed_others(strokes: Path, root: Path) -> None:
    options = {"classes": 2, "writers": 3, "test_writers": 1}
    first = load("hanzi", **options)
    np.random.default_rng(0).random(100)
    again = load("hanzi", **options, budget=10)  # through the map on disk
    assert isinstance(again.train.images, np.memmap)
    np.testing.assert_array_equal(first.train.images, again.train.images)
    other = load("hanzi", **options, seed=1)
    assert (first.train.images != other.train.images).any(axis=(1, 2, 3)).all()
    # No two writers draw alike.
    assert len({image.tobytes() for image in first.train.images}) == 4
    # More writers leave the earlier ones as they are.
    more = load("hanzi", classes=2, writers=5, test_writers=1)
    np.testing.assert_array_equal(more.train.images[:2], first.train.images[:2])


def test_centre_lines_are_evenly_spaced_and_upright() -> None:
    lines = handwriting.centre_lines([[[0, 900], [1024, 900]], [[512, 900], [512, 388], [512, -124]]])
    assert lines.shape == (2, handwriting.POINTS, 2)
    np.testing.assert_allclose(lines[0, [0, -1]], [[-0.5, -0.5], [0.5, -0.5]], atol=1e-12)
    np.testing.assert_allclose(lines[1, [0, -1]], [[0, -0.5], [0, 0.5]], atol=1e-12)  # y points down
    gaps = np.linalg.norm(np.diff(lines, axis=1), axis=2)
    np.testing.assert_allclose(gaps, 1 / (handwriting.POINTS - 1), rtol=1e-3)


def test_hanzi_package_is_gathered_into_one_file(tmp_path: Path) -> None:
    for character, medians in MEDIANS.items():
        (tmp_path / f"{character}.json").write_text(json.dumps({"strokes": ["M 1 2"], "medians": medians}))
    (tmp_path / "package.json").write_text("{}")
    (tmp_path / "ARPHICPL.TXT").write_text("licence")
    hanzi.gather(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ARPHICPL.TXT", "medians.json"]
    assert json.loads((tmp_path / "medians.json").read_text()) == MEDIANS


def test_hanzi_order_is_gb2312s() -> None:
    assert sorted("龍齄一啊座亍", key=hanzi.order) == list("啊一座亍齄龍")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"classes": 5}, "classes=5 must be 1 to 4"),
        (
            {"classes": 2, "writers": 3, "test_writers": 3},
            "test_writers=3 must be at least 1 and below writers=3",
        ),
        ({"classes": 2, "size": 4}, "size=4 must be at least 8"),
    ],
)
def test_hanzi_wrong_options(strokes: Path, options: dict, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        load("hanzi", **options)


def test_hanzi_damaged(strokes: Path) -> None:
    (strokes / "medians.json").write_text('{"一": [[[1')
    with pytest.raises(DataError, match=r"medians.json is not JSON"):
        load("hanzi")
