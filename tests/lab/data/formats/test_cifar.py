"""The binary batches of both CIFARs, when they are damaged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.lab.data.miniatures import write_cifar10

from drcl.lab.data import DataError, load


def test_truncated_and_mislabelled_batches(root: Path, pixels: Callable) -> None:
    images = pixels(12, 3, 32, 32)
    write_cifar10(root / "cifar10", images, np.full(12, 10))
    with pytest.raises(DataError, match="has label 10, this set's labels are 0 to 9"):
        load("cifar10")
    path = root / "cifar10" / "data_batch_1.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match="6,145 bytes, which is not a whole number of 3,073-byte rows"):
        load("cifar10")
