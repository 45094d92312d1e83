"""Pictures from strangers: plain formats only, no more pixels than a file can hold, checksums where there are any."""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image

from drcl.lab.data import DataError, images, load
from drcl.lab.data.decoding import check_pixels
from drcl.lab.data.images import check_kept


@pytest.fixture
def folder(root: Path, picture: Callable) -> Path:
    for part, count in (("train", 4), ("test", 2)):
        for i in range(count):
            picture(root / "own" / part / ("cats", "dogs")[i % 2] / f"{i}.png", (i, 10 * i, 100), (9, 9))
    return root / "own"


def refusal(folder: Path, content: bytes, name: str = "0.png") -> str:
    path = folder / "train" / "cats" / name
    path.write_bytes(content)
    with pytest.raises(DataError) as refused:
        load("folder", path=folder)
    said = str(refused.value)
    assert str(path) in said
    assert "\n" not in said
    return said


def saved(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(width: int, height: int, pixels: bytes, depth: int = 8, colour: int = 0) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    start = b"\x89PNG\r\n\x1a\n"
    return start + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(pixels)) + chunk(b"IEND", b"")


def test_a_postscript_file_starts_no_program(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *rest, **options: started.append(rest))
    program = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n%%EOF\n"
    assert "it is damaged, or none of BMP, GIF, JPEG" in refusal(folder, program)
    assert started == []


@pytest.mark.parametrize("kind", ["TGA", "PCX", "ICO", "SGI", "PDF", "JPEG2000", "DDS", "MSP"])
def test_formats_that_are_not_asked_for(folder: Path, kind: str) -> None:
    image = Image.new("1" if kind == "MSP" else "RGB", (9, 9))
    assert "it is damaged, or none of" in refusal(folder, saved(image, kind))


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "BMP", "WEBP", "GIF", "TIFF", "PPM"])
def test_formats_that_are(folder: Path, kind: str) -> None:
    (folder / "train" / "cats" / "0.png").write_bytes(saved(Image.new("RGB", (9, 9), (255, 255, 255)), kind))
    assert load("folder", path=folder).train.images[0].min() == 255


def test_more_pixels_than_bytes_can_hold(folder: Path) -> None:
    # 36 million pixels in 4.5 kilobytes, and 400 million in 50.
    assert "announces 6000x6000 pixels in" in refusal(folder, png(6000, 6000, bytes(751 * 6000), 1))
    said = refusal(folder, png(20_000, 20_000, bytes(2501 * 20_000), 1))
    assert "announces more than 67,108,864 pixels" in said
    assert "announces 5000x5000 pixels in" in refusal(folder, b"P6 5000 5000 255\n" + bytes(100))
    assert "announces 5000x5000 pixels in" in refusal(folder, saved(Image.new("1", (5000, 5000)), "GIF"))
    assert "announces 5000x5000 pixels in" in refusal(
        folder, saved(Image.new("RGB", (5000, 5000)), "WEBP", lossless=True)
    )
    huge = bytearray(saved(Image.new("RGB", (9, 9)), "WEBP", lossless=True))
    huge[21:25] = struct.pack("<I", 0xFFFFFFF)  # 16384x16384
    assert "announces 16384x16384 pixels in" in refusal(folder, bytes(huge))
    tags = {256: 9, 257: 9, 258: 8, 259: 8, 262: 1, 277: 1, 322: 1 << 20, 323: 1 << 20, 324: 4, 325: 4}
    tiles = b"II*\0\x08\0\0\0" + struct.pack("<H", len(tags))
    tiles += b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items()) + bytes(4)
    assert "announces tiles of 1048576x1048576 pixels" in refusal(folder, tiles)
    check_pixels(8192, 8192, "a photograph", 4_000_000)


def test_a_picture_of_one_colour_may_be_small(folder: Path) -> None:
    content = saved(Image.new("L", (2048, 2048), 7), "PNG")
    assert len(content) < 10_000
    for part in ("train", "test"):
        for path in (folder / part).rglob("*.png"):
            path.write_bytes(content)
    assert load("folder", path=folder, size=4).train.images.max() == 7


@pytest.mark.parametrize("compressed", [True, False])
def test_damaged_pixels_of_a_png_are_noticed(folder: Path, pixels: Callable, compressed: bool) -> None:
    good = saved(Image.fromarray(pixels(64, 64, 3)), "PNG", compress_level=6 if compressed else 0)
    start = good.index(b"IDAT") + 4
    for at in range(start, len(good) - 12, 997):
        bad = bytearray(good)
        bad[at] ^= 16
        assert "a checksum is wrong" in refusal(folder, bytes(bad))
    assert "it is truncated" in refusal(folder, good[:-13])
    assert "it is truncated" in refusal(folder, good[:-1])


def test_sixteen_bits_keep_their_upper_eight(folder: Path) -> None:
    values = np.arange(81, dtype=np.uint16).reshape(9, 9) * 809
    for kind in ("PNG", "TIFF", "PPM"):
        (folder / "train" / "cats" / "0.png").write_bytes(saved(Image.fromarray(values), kind))
        for channels in (1, 3):
            read = load("folder", path=folder, channels=channels).train.images[0]
            np.testing.assert_array_equal(read, np.broadcast_to(values // 256, (channels, 9, 9)), err_msg=kind)
    items = [(Image.fromarray(values), 0)]
    np.testing.assert_array_equal(load("torch", train=items, test=items).train.images[0, 0], values // 256)
    for deep in (values.astype(np.int32) * 1000, values.astype(np.float32)):
        assert "grey values of 32 bits" in refusal(folder, saved(Image.fromarray(deep), "TIFF"))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x89PNG\r\n\x1a\n",
        b"\x89PNG\r\n\x1a\n" + chunk(b"IEND", b""),
        b"\x89PNG\r\n\x1a\n\xff\xff\xff\xffIHDR",
        png(0, 9, b""),
        png(9, 9, bytes(9)),
        png(9, 9, bytes(90), 3),
        b"RIFF\x04\0\0\0WEBP",
        b"RIFF\xff\xff\xff\xffWEBPVP8X" + bytes(8),
        b"II*\0\xff\xff\xff\xff",
        b"II*\0\x08\0\0\0\xff\xff" + bytes(40),
        b"MM\0*\0\0\0\x08\0\x01" + struct.pack(">HHII", 256, 4, 1, 9) + bytes(4),
        b"GIF89a\x09\0\x09\0\xff\0\0",
        b"BM" + bytes(60),
        b"P6 0 0 255\n",
        b"P5 9 9 0\n",
        b"P2 9 9 255\n" + b"9" * 5000,
        b"\xff\xd8\xff\xe0\0\x10JFIF\0",
        b"\xff\xd8\xff\xc0\0\x11\x08\xff\xff\xff\xff\x03",
    ],
)
def test_beginnings_of_pictures(folder: Path, content: bytes) -> None:
    assert refusal(folder, content)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes on this system")
def test_a_pipe_named_like_a_picture(folder: Path) -> None:
    os.mkfifo(folder / "train" / "dogs" / "9.png")
    with pytest.raises(DataError, match=r"9.png is not a readable picture: it is not a file"):
        load("folder", path=folder)


def test_sizes_that_are_too_large(folder: Path) -> None:
    for size in (8193, 10**9):
        with pytest.raises(DataError, match=f"size={size} must be at most 8,192"):
            load("folder", path=folder, size=size)


def test_a_kept_array_that_was_damaged_is_made_again(folder: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "WORTH_KEEPING", 1)
    expected = load("folder", path=folder).train.images
    kept = next((root / ".drcl" / "decoded").glob("own-train-*.npy"))
    good = kept.read_bytes()
    for bad in (good[:-1] + bytes([good[-1] ^ 1]), good[:-5], b"", good + b"x", good.replace(b"|u1", b"|i1", 1)):
        kept.write_bytes(bad)
        np.testing.assert_array_equal(load("folder", path=folder).train.images, expected)
        assert kept.read_bytes() == good
    assert check_kept(root, "own") == 2
    kept.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    with pytest.raises(DataError, match="has changed since it was made; delete it, and it will be made again"):
        check_kept(root, "own")
    kept.with_suffix(".sha256").unlink()
    np.testing.assert_array_equal(load("folder", path=folder).train.images, expected)


def test_a_full_disk_is_a_sentence(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = images.shutil.disk_usage(folder)
    monkeypatch.setattr(images.shutil, "disk_usage", lambda path: usage._replace(free=100))
    with pytest.raises(DataError, match=r"own train needs 972 bytes in .*, where 100 are free; make room"):
        load("folder", path=folder, budget=1)
