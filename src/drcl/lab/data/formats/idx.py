"""IDX, the format of MNIST and its relatives: a magic number, big-endian sizes, then the values."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np

from drcl.lab.data.errors import DataError
from drcl.lab.data.files import read_bytes

UNSIGNED_BYTE = 0x08
SIDE = 28  # pixels, in every data set that comes in this format
LARGEST = 1 << 30  # bytes; EMNIST's largest file has 547 million


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """The uint8 array of an IDX file with this number of dimensions (3 for images, 1 for labels)."""
    content = read_bytes(path, LARGEST)
    header = 4 + 4 * dimensions
    if len(content) < header:
        raise DataError(f"{path} is {len(content)} bytes, shorter than an IDX header ({header}); fetch it again.")
    magic = struct.unpack(">I", content[:4])[0]
    expected = UNSIGNED_BYTE << 8 | dimensions
    if magic != expected:
        kinds = {0x0801: "labels", 0x0803: "images"}
        seen = f"{kinds[magic]}" if magic in kinds else "something else"
        raise DataError(
            f"{path} starts with magic number 0x{magic:08x} ({seen}); "
            f"IDX {kinds[expected]} start with 0x{expected:08x}. Get the right file."
        )
    shape = struct.unpack(f">{dimensions}I", content[4:header])
    size = math.prod(shape)
    if not size:
        raise DataError(f"{path} announces {'x'.join(map(str, shape))} values, which is none; fetch it again.")
    if len(content) - header != size:
        raise DataError(
            f"{path} announces {'x'.join(map(str, shape))} = {size:,} values but holds "
            f"{len(content) - header:,}; it is truncated or damaged, fetch it again."
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def read_pair(images: Path, labels: Path, classes: int, first: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Images [N, 1, H, W] and int64 labels counted from 0; ``first`` is the smallest label in the file."""
    x = read_idx(images, 3)
    y = read_idx(labels, 1).astype(np.int64) - first
    if len(x) != len(y):
        raise DataError(
            f"{images} has {len(x):,} images but {labels} has {len(y):,} labels; they do not belong together."
        )
    if x.shape[1:] != (SIDE, SIDE):
        raise DataError(
            f"{images} has images of {x.shape[2]}x{x.shape[1]}; this set's are {SIDE}x{SIDE}, get it again."
        )
    if not (y.min() >= 0 and y.max() < classes):
        low, high = int(y.min()) + first, int(y.max()) + first
        raise DataError(f"{labels} has labels {low} to {high}; this set's labels are {first} to {first + classes - 1}.")
    return x[:, None], y
