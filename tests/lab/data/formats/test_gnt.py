"""CASIA's .gnt records, one by one."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from drcl.lab.data import DataError
from drcl.lab.data.formats.gnt import character, is_hanzi, read_gnt


def test_records_come_in_order_with_their_shapes(tmp_path: Path, pixels) -> None:
    tall, wide = pixels(5, 3), pixels(2, 7, seed=1)
    content = b""
    for code, image in ((b"\xd2\xbb", tall), (b"A\0", wide)):
        content += struct.pack("<I", 10 + image.size) + code + struct.pack("<HH", *image.shape[::-1]) + image.tobytes()
    (tmp_path / "a.gnt").write_bytes(content)
    (first, one), (second, two) = read_gnt(tmp_path / "a.gnt")
    assert (first, second) == (b"\xd2\xbb", b"A\0")
    np.testing.assert_array_equal(one, tall)
    np.testing.assert_array_equal(two, wide)


def test_codes_and_characters(tmp_path: Path) -> None:
    assert character(b"\xd2\xbb", tmp_path) == "一"
    assert character(b"A\0", tmp_path) == "A"
    assert is_hanzi("啊".encode("gbk"))  # the first of GB2312's characters
    assert not is_hanzi(b"A\0")
    assert not is_hanzi("，".encode("gbk"))
    with pytest.raises(DataError, match="has the code ffff, which is not a GB character"):
        character(b"\xff\xff", tmp_path)
