"""CIFAR-10 and CIFAR-100 from binary rows; the pickled archives are refused."""

from __future__ import annotations

import io
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from drcl.lab.data import DataError, MissingData, load


def rows(labels: np.ndarray, images: np.ndarray) -> bytes:
    """Label bytes, then 1,024 red values, then green, then blue."""
    return b"".join(bytes(np.atleast_1d(y).tolist()) + x.tobytes() for y, x in zip(labels, images, strict=True))


def write_cifar10(folder: Path, images: np.ndarray, labels: np.ndarray) -> None:
    folder.mkdir(parents=True)
    for i in range(5):
        part = slice(2 * i, 2 * i + 2)
        (folder / f"data_batch_{i + 1}.bin").write_bytes(rows(labels[part], images[part]))
    (folder / "test_batch.bin").write_bytes(rows(labels[10:], images[10:]))


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


def test_truncated_and_mislabelled_batches(root: Path, pixels: Callable) -> None:
    images = pixels(12, 3, 32, 32)
    write_cifar10(root / "cifar10", images, np.full(12, 10))
    with pytest.raises(DataError, match="has label 10, this set's labels are 0 to 9"):
        load("cifar10")
    path = root / "cifar10" / "data_batch_1.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match="6,145 bytes, which is not a whole number of 3,073-byte rows"):
        load("cifar10")


def write_cifar100(folder: Path, images: np.ndarray, coarse: np.ndarray, fine: np.ndarray) -> None:
    folder.mkdir(parents=True)
    both = np.stack([coarse, fine], 1)
    (folder / "train.bin").write_bytes(rows(both, images))
    (folder / "test.bin").write_bytes(rows(both[::-1], images[::-1]))


def test_cifar100_fine_and_coarse(root: Path, pixels: Callable) -> None:
    images, coarse, fine = pixels(4, 3, 32, 32), np.array([4, 1, 19, 4]), np.array([0, 1, 99, 51])
    write_cifar100(root / "cifar-100-binary", images, coarse, fine)
    (root / "cifar-100-binary" / "coarse_label_names.txt").write_text("\n".join(f"group{i}" for i in range(20)))
    data = load("cifar100")
    np.testing.assert_array_equal(data.train.images, images)
    np.testing.assert_array_equal(data.train.labels, fine)
    np.testing.assert_array_equal(data.test.labels, fine[::-1])
    assert len(data.classes) == 100
    data = load("cifar100", labels="coarse")
    np.testing.assert_array_equal(data.train.labels, coarse)
    assert data.classes[19] == "group19"


def test_cifar100_wrong_options_and_names(root: Path, pixels: Callable) -> None:
    write_cifar100(root / "cifar100", pixels(2, 3, 32, 32), np.zeros(2, int), np.zeros(2, int))
    with pytest.raises(DataError, match="labels='rough' is not one of cifar100's: fine, coarse"):
        load("cifar100", labels="rough")
    with pytest.raises(DataError, match="cifar100 has no option 'split'; it has labels"):
        load("cifar100", split="test")
    (root / "cifar100" / "fine_label_names.txt").write_text("apple\npear\n")
    with pytest.raises(DataError, match="has 2 names, cifar100 has 100 fine classes"):
        load("cifar100")


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
