"""Rendered Chinese characters: they follow their strokes, and only the seed decides how."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from drcl.lab.data import DataError, load
from drcl.lab.data.sets import hanzi

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
