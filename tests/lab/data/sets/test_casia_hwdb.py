"""CASIA-HWDB: records of .gnt files read back, versions, and damaged files."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from drcl.lab.data import DataError, MissingData, load


def record(character: str, image: np.ndarray) -> bytes:
    height, width = image.shape
    code = character.encode("gbk").ljust(2, b"\0")
    return struct.pack("<I", 10 + image.size) + code + struct.pack("<HH", width, height) + image.tobytes()


def page(height: int, width: int, ink: int) -> np.ndarray:
    image = np.full((height, width), 255, np.uint8)
    image[0] = ink  # the top row is dark
    return image


@pytest.fixture
def casia(root: Path) -> Path:
    home = root / "casia-hwdb"
    train, test = home / "HWDB1.1trn_gnt", home / "HWDB1.1tst_gnt"
    train.mkdir(parents=True)
    test.mkdir()
    (train / "1001-c.gnt").write_bytes(record("一", page(4, 8, 0)) + record("啊", page(8, 8, 50)))
    (train / "1002-c.gnt").write_bytes(record("啊", page(8, 4, 100)) + record("A", page(8, 8, 1)))
    (test / "1241-c.gnt").write_bytes(record("一", page(8, 8, 7)))
    return home


def test_records_are_read_back(casia: Path) -> None:
    data = load("casia-hwdb", size=8)
    assert data.train.images.shape == (3, 1, 8, 8)
    assert data.classes == ("啊", "一")  # GB codes B0A1 and D2BB
    assert data.train.labels.tolist() == [1, 0, 0]
    assert data.train.groups is not None
    assert data.train.groups.tolist() == [0, 0, 1]
    assert data.test.groups is not None
    assert data.test.groups.tolist() == [2]
    np.testing.assert_array_equal(data.train.images[1, 0], page(8, 8, 50))
    # A 4x8 page is centred on a white 8x8 square, a 8x4 one likewise.
    expected = np.full((8, 8), 255, np.uint8)
    expected[2] = 0
    np.testing.assert_array_equal(data.train.images[0, 0], expected)
    expected = np.full((8, 8), 255, np.uint8)
    expected[0, 2:6] = 100
    np.testing.assert_array_equal(data.train.images[2, 0], expected)


def test_signs_are_kept_on_request(casia: Path) -> None:
    data = load("casia-hwdb", size=8, symbols=True)
    assert data.classes == ("A", "啊", "一")
    assert len(data.train) == 4


def test_other_versions(casia: Path) -> None:
    with pytest.raises(MissingData, match=r"version='1.0' of casia-hwdb is not in .* there is 1.1"):
        load("casia-hwdb", version="1.0")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (record("一", page(4, 4, 0))[:-1], "ends inside the record at byte 0; it is truncated"),
        (record("一", page(4, 4, 0)) + b"\x1a\0\0", "ends inside a record header at byte 26"),
        (b"PK\x03\x04" + bytes(40), "cannot hold 0x0 pixels"),
        (
            record("一", page(4, 4, 0)).replace(b"\x1a\0", b"\x1b\0", 1),
            "a record of 27 bytes cannot hold 4x4",
        ),
        (struct.pack("<I", 26) + b"\xb0\xff" + struct.pack("<HH", 4, 4) + bytes(16), "not a GB character"),
    ],
)
def test_damaged_files(casia: Path, content: bytes, sentence: str) -> None:
    (casia / "HWDB1.1trn_gnt" / "1001-c.gnt").write_bytes(content)
    with pytest.raises(DataError, match=sentence):
        load("casia-hwdb")


def test_missing_says_which_files(root: Path) -> None:
    with pytest.raises(MissingData, match=r"get HWDB1.1trn_gnt.zip and HWDB1.1tst_gnt.zip"):
        load("casia-hwdb")
