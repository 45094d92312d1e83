"""Arrays from strangers: what a header announces is compared with what is there before any memory is asked for."""

from __future__ import annotations

import gzip
import io
import os
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drcl.lab.data import DataError, load
from drcl.lab.data.files import most_unpacked, read_bytes, read_lines
from drcl.lab.data.formats.npy import map_npy, read_npy, read_npz

MEGABYTE = 1 << 20


def peak(work: Callable[[], Any]) -> int:
    """The most bytes that ``work`` held at once, as Python and numpy count them."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def refusal(work: Callable[[], Any], most: int = 8 * MEGABYTE) -> str:
    """The sentence ``work`` is refused with, having held fewer than ``most`` bytes."""
    said = []

    def caught() -> None:
        with pytest.raises(DataError) as refused:
            work()
        said.append(str(refused.value))

    held = peak(caught)
    assert held < most, f"{held:,} bytes for: {said[0]}"
    assert len(said[0]) < 1000
    assert "\n" not in said[0]
    return said[0]


@pytest.fixture
def arrays(pixels: Callable) -> dict[str, np.ndarray]:
    return {
        "train_images": pixels(6, 12, 10, 3),
        "train_labels": np.array([0, 1, 2, 0, 1, 2]),
        "test_images": pixels(3, 12, 10, 3, seed=1),
        "test_labels": np.array([2, 1, 0]),
        "classes": np.array(["ant", "bee", "cat"]),
    }


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def announcing(descr: str, shape: tuple[int, ...], values: bytes = b"") -> bytes:
    """A .npy file whose header says this, whatever values follow."""
    header = repr({"descr": descr, "fortran_order": False, "shape": shape}).encode().ljust(118) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + values


def write_npz(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"train_labels": np.full(6, 10**8), "classes": None}, "label 100,000,000, far more classes than images"),
        ({"train_labels": np.full(6, 2**63, np.uint64)}, "label 9223372036854775808"),
        ({"train_labels": np.full(6, 1e300)}, "label 1e+300"),
        ({"train_labels": np.full(6, np.inf)}, "label inf"),
        ({"train_labels": np.full(6, np.nan)}, "labels are whole numbers"),
        ({"train_labels": np.full(6, -1.0)}, "label -1.0; labels count from 0"),
        ({"train_labels": np.array(list("abcdef"))}, "<U1 values; labels are whole numbers"),
        ({"train_labels": np.zeros(6, np.complex64)}, "values of type complex64"),
        ({"train_labels": np.zeros(6, "m8[s]")}, "values of type timedelta64"),
        ({"train_labels": np.array(3)}, "shape () for 6 images"),
        ({"train_labels": np.zeros((6, 2, 2), int)}, "shape (6, 2, 2) for 6 images"),
        ({"train_labels": np.full((6, 2), 7), "test_labels": np.full((3, 2), 7)}, "attributes (6, 2) that are not 0"),
        ({"train_labels": np.zeros((6, 3), int)}, "other kinds of labels than train"),
        ({"train_images": np.array("abc")}, "has shape (); wanted NHW"),
        ({"train_images": np.full((6, 12, 10), "x")}, "<U1 values; wanted uint8"),
        ({"train_images": np.zeros((6, 12, 10), "V3")}, "values of type |V3"),
        ({"train_images": np.zeros((6, 12, 10), [("a", "u1")])}, "values of type [('a', 'u1')]"),
        ({"train_images": np.zeros((6, 12, 10), "M8[s]")}, "values of type datetime64"),
        ({"train_images": np.full((6, 12, 10, 3), np.nan)}, "not numbers (NaN)"),
        ({"train_images": np.full((6, 12, 10, 3), np.inf)}, "float values from inf to inf"),
        ({"train_images": np.zeros((6, 0, 10, 3), np.uint8)}, "both parts need one shape"),
        ({"train_images": np.zeros((0, 12, 10, 3), np.uint8), "train_labels": np.zeros(0, int)}, "holds no images"),
        ({"classes": np.array("ant")}, "values of shape (); wanted one text per class"),
        ({"classes": np.zeros((3, 2), "U1")}, "values of shape (3, 2); wanted one text per class"),
        ({"classes": np.zeros(3)}, "float64 values of shape (3,); wanted one text per class"),
        ({"classes": np.array([b"\xff\xfe", b"b", b"c"])}, "names that are not text"),
        ({"classes": np.array(["ant\x1b[2J", "bee", "cat"])}, "a name with control characters"),
        ({"train_groups": np.zeros((6, 2), int)}, "groups int64 (6, 2); wanted one whole number per image"),
    ],
)
def test_arrays_of_the_wrong_kind(root: Path, arrays: dict[str, np.ndarray], change: dict, sentence: str) -> None:
    np.savez(root / "bad.npz", **{k: v for k, v in (arrays | change).items() if v is not None})
    assert sentence in refusal(lambda: load("bad"))


def test_labels_and_names_that_are_right(root: Path, arrays: dict[str, np.ndarray]) -> None:
    changed = arrays | {
        "train_labels": np.array([0, 1, 2, 0, 1, 2], ">f4"),
        "classes": np.array([b"ant", b"bee", b"x"]),
    }
    np.savez(root / "good.npz", **changed)
    data = load("good")
    assert data.classes == ("ant", "bee", "x")
    assert data.train.labels.tolist() == [0, 1, 2, 0, 1, 2]
    # Bytes other than 0 and 1 in an array of truth values are true, as numpy has it.
    odd = np.array([0, 1, 2, 255], np.uint8).view(bool)
    np.savez(
        root / "odd.npz", **arrays | {"train_images": np.tile(odd, (6, 12, 1)), "test_images": np.tile(odd, (3, 12, 1))}
    )
    assert load("odd").train.images[0, 0, 0].tolist() == [0, 255, 255, 255]


HEADERS = {
    "more than there is": announcing("|u1", (10**12,), bytes(100)),
    "more than 64 bits": announcing("|u1", (2**40, 2**40), bytes(100)),
    "less than there is": announcing("|u1", (3,), bytes(100)),
    "negative": announcing("|u1", (-1,), bytes(100)),
    "many of nothing": announcing("|S0", (10**12,)),
    "a void": announcing("|V100", (1,), bytes(100)),
    "a pickle": announcing("|O", (1,), b"\x80\x04N."),
    "not a type": announcing("|zz9", (1,), bytes(9)),
    "a type of two gigabytes": announcing("|S2000000000", (1,), bytes(100)),
    "not a header": b"\x93NUMPY\x01\x00\x10\x00" + b"import os; os.x\n",
    "deep": b"\x93NUMPY\x01\x00" + struct.pack("<H", 9000) + b"(" * 8999 + b"\n",
    "a header of 4 gigabytes": b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**32 - 1) + bytes(100),
    "a header of 60 kilobytes": b"\x93NUMPY\x01\x00" + struct.pack("<H", 60_000) + b" " * 60_000,
    "a version of tomorrow": b"\x93NUMPY\x09\x00" + bytes(100),
    "three bytes": b"\x93NU",
    "nothing": b"",
}


@pytest.mark.parametrize("header", HEADERS)
def test_headers_that_lie(root: Path, tmp_path: Path, arrays: dict[str, np.ndarray], header: str) -> None:
    members = {name: npy(array) for name, array in arrays.items()}
    write_npz(root / "bad.npz", members | {"train_images": HEADERS[header]})
    said = refusal(lambda: load("bad"))
    assert f"train_images in {root / 'bad.npz'}" in said
    path = tmp_path / "bad.npy"
    path.write_bytes(HEADERS[header])
    for read in (read_npy, lambda path: read_npy(path, 2), map_npy):
        assert str(path) in refusal(lambda read=read: read(path))


def test_npy_round_trip(tmp_path: Path) -> None:
    values = np.arange(24, dtype=">i4").reshape(2, 3, 4)
    for array in (values, np.asfortranarray(values), values[0, 0, 0], values.astype("U3")):
        np.save(tmp_path / "a.npy", array)
        np.testing.assert_array_equal(read_npy(tmp_path / "a.npy"), array)
        np.savez_compressed(tmp_path / "a.npz", x=array, y=array)
        found, names = read_npz(tmp_path / "a.npz", ["x"])
        np.testing.assert_array_equal(found["x"], array)
        assert (list(found), names) == (["x"], ["x", "y"])
    for array in (values, np.asfortranarray(values)):
        np.save(tmp_path / "a.npy", array)
        np.testing.assert_array_equal(read_npy(tmp_path / "a.npy", 1), array[:1])
        np.testing.assert_array_equal(read_npy(tmp_path / "a.npy", 9), array)


def test_a_zip_that_lies_about_sizes(root: Path, arrays: dict[str, np.ndarray]) -> None:
    np.savez_compressed(root / "bad.npz", **arrays)
    content = bytearray((root / "bad.npz").read_bytes())
    entry = content.index(b"PK\x01\x02")  # the first entry of the directory; its unpacked size is 24 bytes on
    content[entry + 24 : entry + 28] = struct.pack("<I", 2**32 - 2)
    (root / "bad.npz").write_bytes(content)
    assert "far more than it should" in refusal(lambda: load("bad"))


def test_a_compressed_array_of_nothing_is_a_bomb(root: Path, arrays: dict[str, np.ndarray]) -> None:
    images = np.zeros((10_000, 100, 100), np.uint8)  # 100 million zeros in 97,000 bytes
    np.savez_compressed(root / "bad.npz", **arrays | {"train_images": images})
    del images
    assert "save it uncompressed with numpy.savez" in refusal(lambda: load("bad"))
    assert most_unpacked(10) == 64 * MEGABYTE
    assert most_unpacked(MEGABYTE) == 200 * MEGABYTE
    assert most_unpacked(1 << 40) == 8 << 30


def test_an_npz_that_is_packed_strangely(root: Path, arrays: dict[str, np.ndarray]) -> None:
    for kind in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        with zipfile.ZipFile(root / "bad.npz", "w", kind) as archive:
            for name, array in arrays.items():
                archive.writestr(f"{name}.npy", npy(array))
        assert "packed or encrypted in an unusual way" in refusal(lambda: load("bad"))
    with zipfile.ZipFile(root / "bad.npz", "w") as archive:
        archive.writestr("train_images.npy", npy(arrays["train_images"]))
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("train_images.npy", npy(arrays["train_images"]))
    assert "two arrays of one name" in refusal(lambda: load("bad"))
    (root / "bad.npz").write_bytes(npy(arrays["train_images"]))
    assert "is not a readable .npz file" in refusal(lambda: load("bad"))


def test_a_checksum_that_is_wrong(root: Path, arrays: dict[str, np.ndarray]) -> None:
    np.savez(root / "bad.npz", **arrays)
    content = bytearray((root / "bad.npz").read_bytes())
    content[content.index(arrays["train_images"].tobytes()[:50]) + 20] ^= 1
    (root / "bad.npz").write_bytes(content)
    assert "is not a readable .npz file (Bad CRC-32" in refusal(lambda: load("bad"))


def test_a_directory_that_hides_an_entry(root: Path, arrays: dict[str, np.ndarray]) -> None:
    np.savez(root / "bad.npz", **arrays)
    content = bytearray((root / "bad.npz").read_bytes())
    entries = [at for at in range(len(content)) if content[at : at + 4] == b"PK\x01\x02"]
    content[entries[-2] + 33] = 1  # a comment of 256 bytes, in which the last entry disappears
    (root / "bad.npz").write_bytes(content)
    assert "does not have as many entries as it announces" in refusal(lambda: load("bad"))
    np.savez(root / "bad.npz", **arrays)
    content = bytearray((root / "bad.npz").read_bytes())
    content[content.rindex(b"classes.npy")] ^= 1  # its name in the directory, not the one before its values
    (root / "bad.npz").write_bytes(content)
    assert "is not a readable .npz file" in refusal(lambda: load("bad"))


def test_reading_a_small_file_takes_little(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(bytes(1000))
    (tmp_path / "packed.gz").write_bytes(gzip.compress(bytes(1000)))
    for name in ("plain", "packed.gz"):
        assert peak(lambda name=name: read_bytes(tmp_path / name)) < 4 * MEGABYTE
        assert read_bytes(tmp_path / name) == bytes(1000)


def test_a_gzip_bomb(tmp_path: Path) -> None:
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(bytes(100 * MEGABYTE)))
    assert "unpacks to more than 67,108,864 bytes" in refusal(lambda: read_bytes(path), 80 * MEGABYTE)
    assert "unpacks to more than 1,000,000 bytes" in refusal(lambda: read_bytes(path, 1_000_000))
    (tmp_path / "long.txt").write_bytes(b"a\n" * 100)
    assert "has 200 bytes, more than the 100" in refusal(lambda: read_lines(tmp_path / "long.txt", 100))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (struct.pack(">4I", 0x803, 7, 0, 28), "announces 7x0x28 values, which is none"),
        (struct.pack(">4I", 0x803, 0, 28, 28), "announces 0x28x28 values, which is none"),
        (struct.pack(">4I", 0x803, 2**32 - 1, 2**32 - 1, 2**32 - 1), "values but holds 0"),
        (struct.pack(">4I", 0x803, 2**31, 2**31, 4) + bytes(16), "values but holds 16"),
        (struct.pack(">4I", 0x803, 7, 14, 56) + bytes(7 * 784), "images of 56x14; this set's are 28x28"),
        (gzip.compress(struct.pack(">4I", 0x803, 2**32 - 1, 28, 28)), "values but holds 0"),
        (gzip.compress(bytes(9000))[:-3], "damaged or truncated gzip"),
        (b"\x1f\x8b\x08\x04" + bytes(6) + b"\xff\xff", "damaged or truncated gzip"),
        (b"\x1f\x8b\x07" + bytes(20), "damaged or truncated gzip"),
    ],
    ids=["no rows", "no images", "huge", "overflow", "shape", "huge packed", "cut", "extra field", "method"],
)
def test_idx_files(root: Path, idx: Callable, pixels: Callable, content: bytes, sentence: str) -> None:
    good = {"train-images-idx3": pixels(7, 28, 28), "train-labels-idx1": np.arange(7)}
    good |= {"t10k-images-idx3": pixels(2, 28, 28), "t10k-labels-idx1": np.arange(2)}
    (root / "mnist").mkdir()
    for name, array in good.items():
        (root / "mnist" / f"{name}-ubyte").write_bytes(idx(array))
    (root / "mnist" / "train-images-idx3-ubyte").write_bytes(content)
    assert sentence in refusal(lambda: load("mnist"))


def test_a_character_of_65535_by_1_pixels(root: Path) -> None:
    record = struct.pack("<I2sHH", 10 + 65535, "一".encode("gbk"), 65535, 1) + bytes(65535)
    for part in ("trn", "tst"):
        folder = root / "casia-hwdb" / f"HWDB1.1{part}_gnt"
        folder.mkdir(parents=True)
        (folder / "1001-c.gnt").write_bytes(record)
    assert "no character has 65535x1 pixels" in refusal(lambda: load("casia-hwdb"))
    (folder.parent / "HWDB1.1trn_gnt" / "1001-c.gnt").write_bytes(b"")
    assert "1001-c.gnt is empty" in refusal(lambda: load("casia-hwdb"))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes on this system")
def test_a_pipe_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.npy")
    for read in (read_bytes, read_npy):
        assert "is not a file that can be read" in refusal(lambda read=read: read(tmp_path / "pipe.npy"))
