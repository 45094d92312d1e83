"""Fashion-MNIST: the same files as MNIST's, never taken for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.lab.data.miniatures import check

from drcl.lab.data import MissingData, load


def test_mnist_is_never_taken_for_fashion_mnist(mnist: tuple[Path, list[np.ndarray]]) -> None:
    with pytest.raises(MissingData, match="fashion-mnist is not in"):
        load("fashion-mnist")


def test_fashion_mnist(mnist: tuple[Path, list[np.ndarray]], root: Path) -> None:
    mnist[0].rename(root / "fashion-mnist")
    data = load("fashion-mnist")
    check(data, mnist[1])
    assert data.classes[9] == "Ankle boot"
