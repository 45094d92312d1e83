"""CIFAR-10 from its binary batches: order, colours, archives, and what is refused."""

from __future__ import annotations

import io
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.lab.data.miniatures import write_cifar10

from drcl.lab.data import DataError, MissingData, load


def test_cifar10_in_official_order(root: Path, pixels: Callable) -> None:
    images, labels = pixels(12, 3, 32, 32), np.arange(12) % 10
    write_cifar10(root / "cifar10" / "cifar-10-batches-bin", images, labels)
    data = load("cifar10")
    np.testing.assert_array_equal(data.train.images, images[:10])
    np.testing.assert_array_equal(data.train.labels, labels[:10])
    np.testing.assert_array_equal(data.test.images, images[10:])
    assert data.classes[9] == "truck"


def test_red_comes_first(root: Path) -> None:
    images = np.zeros((12, 3, 32, 32), np.uint8)
    images[:, 0] = 255
    write_cifar10(root / "cifar10", images, np.zeros(12, int))
    np.testing.assert_array_equal(load("cifar10").test.images[0].mean((1, 2)), [255, 0, 0])


def test_the_archive_is_read_too(root: Path, pixels: Callable, tmp_path: Path) -> None:
    images, labels = pixels(12, 3, 32, 32), np.arange(12) % 10
    write_cifar10(tmp_path / "cifar-10-batches-bin", images, labels)
    with tarfile.open(root / "cifar-10-binary.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "cifar-10-batches-bin", "cifar-10-batches-bin")
    np.testing.assert_array_equal(load("cifar10").train.images, images[:10])
    assert not list((root / ".drcl" / "staging").iterdir())


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("cifar10", "cifar-10-batches-py"),
        ("cifar100", "cifar-100-python"),
        ("cifar10", "cifar-10-python.tar.gz"),
    ],
)
def test_pickled_versions_are_refused_with_the_reason(root: Path, name: str, found: str) -> None:
    if found.endswith("gz"):
        (root / found).write_bytes(b"")
    else:
        (root / name / found).mkdir(parents=True)
    with pytest.raises(MissingData, match=r"pickle can run code hidden in it; take the 'binary version"):
        load(name)


def test_a_pickle_under_a_binary_name_is_not_opened(root: Path, pixels: Callable, tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple:
            return (Path.touch, (tmp_path / "exploded",))

    write_cifar10(root / "cifar10", pixels(12, 3, 32, 32), np.arange(12) % 10)
    (root / "cifar10" / "data_batch_3.bin").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(DataError, match="opening a pickle can run code"):
        load("cifar10")
    assert not (tmp_path / "exploded").exists()


def test_a_damaged_archive_is_a_sentence(root: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        info = tarfile.TarInfo("cifar-10-batches-bin/test_batch.bin")
        info.size = 100_000
        archive.addfile(info, io.BytesIO(np.random.default_rng(0).bytes(100_000)))
    (root / "cifar-10-binary.tar.gz").write_bytes(buffer.getvalue()[:50_000])
    with pytest.raises(DataError, match=r"cifar-10-binary.tar.gz is (damaged|neither)"):
        load("cifar10")
    assert not (root / "cifar10").exists()
