"""CIFAR's binary batches: rows of one or two label bytes and 3,072 pixel bytes in colour planes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from drcl.lab.data.errors import DataError
from drcl.lab.data.files import read_bytes

PIXELS = 3 * 32 * 32
LARGEST = 1 << 30  # bytes; the official files have at most 154 million

PICKLED = (
    "it is the pickled version, and opening a pickle can run code hidden in it; "
    "take the 'binary version (suitable for C programs)' from the same page instead"
)


def read_batches(paths: Sequence[Path], label_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """Images [N, 3, 32, 32] and the uint8 label columns [N, label_bytes] of these batches, in order."""
    row = label_bytes + PIXELS
    tables = []
    for path in paths:
        content = read_bytes(path, LARGEST)
        if content[:1] == b"\x80" and len(content) % row:
            raise DataError(f"{path} is not read: {PICKLED}.")
        if not content or len(content) % row:
            raise DataError(
                f"{path} has {len(content):,} bytes, which is not a whole number of {row:,}-byte rows; "
                "it is truncated or not a CIFAR binary batch. Get it again."
            )
        tables.append(np.frombuffer(content, np.uint8).reshape(-1, row))
    labels = np.concatenate([table[:, :label_bytes] for table in tables])
    images = np.concatenate([table[:, label_bytes:] for table in tables])
    return images.reshape(-1, 3, 32, 32), labels


def check_labels(labels: np.ndarray, classes: int, where: Path) -> np.ndarray:
    """The labels as int64, or an error if one is not below ``classes``."""
    if len(labels) and labels.max() >= classes:
        raise DataError(f"{where} has label {labels.max()}, this set's labels are 0 to {classes - 1}; get it again.")
    return labels.astype(np.int64)
