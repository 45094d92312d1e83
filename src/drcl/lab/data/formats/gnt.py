"""CASIA's .gnt files: one record per character, with its size, GB code, width, height and pixels."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from drcl.lab.data.errors import DataError
from drcl.lab.data.files import read_bytes

LARGEST = 1 << 30  # bytes; a writer's file has about ten million
LARGEST_SIDE = 2048  # pixels; most characters have fewer than a hundred
HEADER = struct.Struct("<I2sHH")  # record size, GB code (as its two bytes), width, height


def read_gnt(path: Path) -> Iterator[tuple[bytes, np.ndarray]]:
    """The GB code and the grey image [H, W] (white 255 background) of each record."""
    content = memoryview(read_bytes(path, LARGEST))
    if not content:
        raise DataError(f"{path} is empty; get it again.")
    at = 0
    while at < len(content):
        if len(content) - at < HEADER.size:
            raise DataError(f"{path} ends inside a record header at byte {at:,}; it is truncated.")
        size, code, width, height = HEADER.unpack_from(content, at)
        if size != HEADER.size + width * height or not width or not height:
            raise DataError(
                f"{path}, byte {at:,}: a record of {size:,} bytes cannot hold {width}x{height} pixels; "
                "it is not a .gnt file or is damaged."
            )
        if max(width, height) > LARGEST_SIDE:
            raise DataError(f"{path}, byte {at:,}: no character has {width}x{height} pixels; it is damaged.")
        if at + size > len(content):
            raise DataError(f"{path} ends inside the record at byte {at:,}; it is truncated.")
        pixels = np.frombuffer(content, np.uint8, width * height, at + HEADER.size)
        yield code, pixels.reshape(height, width)
        at += size


def is_hanzi(code: bytes) -> bool:
    """Whether a GB code is a Chinese character of GB2312 (rows B0 to F7), not a letter, digit or sign."""
    return 0xB0 <= code[0] <= 0xF7 and code[1] >= 0xA1


def character(code: bytes, path: Path) -> str:
    """The character of a GB code; signs of one byte are padded with zero."""
    try:
        return code.rstrip(b"\0").decode("gbk")
    except UnicodeDecodeError as broken:
        raise DataError(f"{path} has the code {code.hex()}, which is not a GB character.") from broken
