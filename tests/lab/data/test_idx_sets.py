"""MNIST, Fashion-MNIST and EMNIST from IDX files: read back, and refused when wrong."""

from __future__ import annotations

import gzip
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from drcl.lab.data import DataError, MissingData, load

FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


@pytest.fixture
def mnist(root: Path, idx: Callable, pixels: Callable) -> tuple[Path, list[np.ndarray]]:
    arrays = [pixels(7, 28, 28), np.arange(7) % 10, pixels(3, 28, 28, seed=1), np.array([9, 0, 5])]
    (root / "mnist").mkdir()
    for name, array in zip(FILES, arrays, strict=True):
        (root / "mnist" / name).write_bytes(idx(array))
    return root / "mnist", arrays


def check(data: object, arrays: list[np.ndarray]) -> None:
    np.testing.assert_array_equal(data.train.images, arrays[0][:, None])  # type: ignore[attr-defined]
    np.testing.assert_array_equal(data.train.labels, arrays[1])  # type: ignore[attr-defined]
    np.testing.assert_array_equal(data.test.images, arrays[2][:, None])  # type: ignore[attr-defined]
    np.testing.assert_array_equal(data.test.labels, arrays[3])  # type: ignore[attr-defined]


def test_reads_back_what_was_written(mnist: tuple[Path, list[np.ndarray]]) -> None:
    data = load("mnist")
    check(data, mnist[1])
    assert data.train.images.dtype == np.uint8
    assert data.train.labels.dtype == np.int64
    assert data.classes == tuple("0123456789")
    assert not data.synthetic
    assert data.train.images.flags.writeable  # torch.from_numpy warns otherwise


def test_gzipped_files_and_dotted_names_and_other_layouts(mnist: tuple[Path, list[np.ndarray]], root: Path) -> None:
    folder, arrays = mnist
    for name in FILES:
        (folder / f"{name}.gz").write_bytes(gzip.compress((folder / name).read_bytes()))
        (folder / name).unlink()
    check(load("mnist"), arrays)
    raw = root / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name in FILES:
        (folder / f"{name}.gz").rename(raw / f"{name.replace('-idx', '.idx')}.gz")
    check(load("mnist"), arrays)


def test_an_explicit_root_wins_over_the_environment(
    mnist: tuple[Path, list[np.ndarray]], root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DRCL_DATA", str(tmp_path / "elsewhere"))
    with pytest.raises(MissingData, match="drcl data fetch mnist"):
        load("mnist")
    check(load("mnist", root), mnist[1])


def test_mnist_is_never_taken_for_fashion_mnist(mnist: tuple[Path, list[np.ndarray]]) -> None:
    with pytest.raises(MissingData, match="fashion-mnist is not in"):
        load("fashion-mnist")


def test_fashion_mnist(mnist: tuple[Path, list[np.ndarray]], root: Path) -> None:
    mnist[0].rename(root / "fashion-mnist")
    data = load("fashion-mnist")
    check(data, mnist[1])
    assert data.classes[9] == "Ankle boot"


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


def test_a_missing_file_means_the_set_is_missing(mnist: tuple[Path, list[np.ndarray]]) -> None:
    (mnist[0] / FILES[3]).unlink()
    with pytest.raises(MissingData, match=r"fetch mnist`, or by hand: get .* put it into .*mnist\."):
        load("mnist")


SPLITS = {"byclass": 62, "bymerge": 47, "balanced": 47, "letters": 26, "digits": 10, "mnist": 10}


@pytest.mark.parametrize("split", SPLITS)
def test_every_emnist_split_is_turned_upright(split: str, root: Path, idx: Callable) -> None:
    first = 1 if split == "letters" else 0
    stored = np.zeros((SPLITS[split], 28, 28), np.uint8)
    stored[:, 2, 5] = 200  # row 2, column 5 of the file is row 5, column 2 of the picture
    labels = np.arange(SPLITS[split]) + first
    folder = root / "emnist" / "gzip"
    folder.mkdir(parents=True)
    for part in ("train", "test"):
        (folder / f"emnist-{split}-{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(stored)))
        (folder / f"emnist-{split}-{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels)))
    data = load("emnist", split=split)
    assert data.train.images[0, 0, 5, 2] == 200
    assert data.train.images[0].sum() == 200
    assert data.train.images.flags.c_contiguous
    np.testing.assert_array_equal(data.train.labels, np.arange(SPLITS[split]))
    assert len(data.classes) == SPLITS[split]


def test_emnist_class_names_follow_the_paper(root: Path, idx: Callable) -> None:
    from drcl.lab.data.sets.emnist import CLASSES

    assert CLASSES["byclass"][10] == "A"
    assert CLASSES["byclass"][36] == "a"
    assert CLASSES["balanced"][36:] == "abdefghnqrt"  # the letters whose two forms differ
    assert CLASSES["letters"][0] == "a"


def test_emnist_archive_is_unpacked_where_it_lies(root: Path, idx: Callable, pixels: Callable) -> None:
    images, labels = pixels(4, 28, 28), np.array([1, 2, 26, 1])
    with zipfile.ZipFile(root / "gzip.zip", "w") as archive:
        for part in ("train", "test"):
            archive.writestr(f"gzip/emnist-letters-{part}-images-idx3-ubyte.gz", gzip.compress(idx(images)))
            archive.writestr(f"gzip/emnist-letters-{part}-labels-idx1-ubyte.gz", gzip.compress(idx(labels)))
    data = load("emnist", split="letters")
    np.testing.assert_array_equal(data.test.images[:, 0], images.transpose(0, 2, 1))
    np.testing.assert_array_equal(data.test.labels, labels - 1)
    with pytest.raises(MissingData, match="'digits' is not in"):
        load("emnist", split="digits")
    with pytest.raises(DataError, match="split='upper' is not one of"):
        load("emnist", split="upper")
