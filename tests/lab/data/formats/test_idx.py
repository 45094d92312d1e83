"""IDX files that are not what they should be."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
from tests.lab.data.miniatures import FILES

from drcl.lab.data import DataError, load


@pytest.mark.parametrize(
    ("file", "content", "sentence"),
    [
        (FILES[0], struct.pack(">I", 0x00000801) + bytes(20), "magic number 0x00000801 .labels."),
        (FILES[1], struct.pack(">I", 0x00000D01) + bytes(20), "magic number 0x00000d01 .something else."),
        (
            FILES[0],
            struct.pack(">IIII", 0x803, 7, 28, 28) + bytes(7 * 784 - 1),
            "5,488 values but holds 5,487",
        ),
        (FILES[1], struct.pack(">II", 0x801, 7) + bytes(8), "7 values but holds 8"),
        (FILES[0], b"\0\0\x08", "shorter than an IDX header"),
        (FILES[1], struct.pack(">II", 0x801, 6) + bytes(6), "7 images but .* 6 labels"),
        (FILES[1], struct.pack(">II", 0x801, 7) + bytes([0, 1, 2, 3, 4, 5, 10]), "labels 0 to 10"),
        (FILES[0], gzip.compress(bytes(9000))[:-9], "damaged or truncated gzip"),
    ],
    ids=["labels for images", "floats", "short", "long", "header", "count", "label", "gzip"],  # gzip holds the time
)
def test_wrong_files_are_refused(
    mnist: tuple[Path, list[np.ndarray]], file: str, content: bytes, sentence: str
) -> None:
    (mnist[0] / file).write_bytes(content)
    with pytest.raises(DataError, match=sentence) as refusal:
        load("mnist")
    assert str(mnist[0]) in str(refusal.value)
