"""From one picture file to pixels: only plain picture formats, with a limit on their size, checked if possible.

PNG has checksums, and a file with a wrong one is refused. JPEG, BMP, WebP, GIF, TIFF and PPM have none: damage that
still decodes gives wrong pixels, and only a checksum of the whole file can reveal it (``drcl data verify``).
"""

from __future__ import annotations

import io
import zlib
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from drcl.lab.data.errors import DataError
from drcl.lab.data.files import there
from drcl.lab.data.guard import reading

EXTENSIONS = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"})
# Pillow supports many more formats, but some of them start programs (EPS: Ghostscript) or read other files.
FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "GIF", "TIFF", "PPM")
MODES = {1: "L", 3: "RGB"}
LARGEST = 1 << 26  # pixels of a picture; ImageNet's largest has 61 million
LARGEST_SIDE = 1 << 13  # of a picture made here
LARGEST_FILE = 1 << 30  # bytes
# A damaged or hostile file announces more pixels than its bytes can hold. Scans in black and white reach some 700
# pixels per byte, photographs 20; a small picture may have a single colour.
SURELY_FINE = 1 << 22
PIXELS_A_BYTE = 1024
PNG = b"\x89PNG\r\n\x1a\n"


def check_size(size: int | None, least: int = 1, most: int = LARGEST_SIDE) -> None:
    """Check that pictures can be resized to ``size`` x ``size``; None keeps their size."""
    if size is not None and size < least:
        raise DataError(f"size={size!r} must be at least {least}.")
    if size is not None and size > most:
        raise DataError(f"size={size!r} must be at most {most:,}.")


def check_pixels(width: int, height: int, what: str, held: int | None = None) -> None:
    """Refuse a picture that is larger than any real one, or larger than ``held`` bytes of a file can encode."""
    count = width * height
    if count <= 0:
        raise DataError(f"{what} is not a readable picture: it has {width}x{height} pixels; get it again.")
    most = LARGEST if held is None else min(LARGEST, max(SURELY_FINE, PIXELS_A_BYTE * held))
    if count > most:
        where = f" in {held:,} bytes" if held is not None else ""
        raise DataError(
            f"{what} announces {width}x{height} pixels{where}, more than {most:,}; it is not read. "
            "Shrink it, or save it again if it is right."
        )


def decode(path: Path, channels: int, size: int | None, fit: str, invert: bool = False) -> np.ndarray:
    """One picture as uint8 [C, H, W]; ``invert`` turns dark ink on white into bright ink on black."""
    with reading(path, "is not a readable picture", "get it again, or take it out"):
        content = _content(path)
        _check_content(content, str(path))
        with _opened(content, path) as image:
            check_pixels(*image.size, str(path), len(content))
            _check_tiles(image, str(path))
            pixels = np.asarray(fitted(in_mode(image, MODES[channels], str(path)), size, fit))
    if invert:
        pixels = 255 - pixels
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)


def fitted(image: Image.Image, size: int | None, fit: str = "squash") -> Image.Image:
    """``image`` at ``size`` x ``size``, bicubic: squashed, or cut to its central square first."""
    if size is None or image.size == (size, size):
        return image
    if fit == "crop":
        side = min(image.size)
        left, top = (image.width - side) // 2, (image.height - side) // 2
        image = image.crop((left, top, left + side, top + side))
    return image.resize((size, size), Image.Resampling.BICUBIC)


def in_mode(image: Image.Image, mode: str, what: str) -> Image.Image:
    """``image`` in grey ("L") or colour ("RGB"). Of 16 bits the upper 8 are kept; Pillow alone would turn all white."""
    deep = image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM"))
    if deep:
        return Image.fromarray((np.asarray(image).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8)).convert(mode)
    if image.mode in ("I", "F"):
        raise DataError(f"{what} has grey values of 32 bits, whose range is not known; save it with 8 or 16 bits.")
    return image.convert(mode)


def _content(path: Path) -> bytes:
    if not there(path):
        raise DataError(f"{path} is not a readable picture: it is not a file; get it again, or take it out.")
    size = path.stat().st_size
    if size > LARGEST_FILE:
        raise DataError(f"{path} has {size:,} bytes, more than a picture can have; take it out.")
    return path.read_bytes()


def _opened(content: bytes, path: Path) -> Image.Image:
    try:
        return Image.open(io.BytesIO(content), formats=FORMATS)
    except UnidentifiedImageError as unknown:
        kinds = ", ".join(sorted(FORMATS))
        raise DataError(
            f"{path} is not a readable picture: it is damaged, or none of {kinds}; get it again, or take it out."
        ) from unknown
    except Image.DecompressionBombError as bomb:
        raise DataError(f"{path} announces more than {LARGEST:,} pixels; it is not read. Shrink it.") from bomb


def _check_content(content: bytes, what: str) -> None:
    """Checks that must come before Pillow opens the file."""
    if content.startswith(PNG):
        _check_png(content, what)
    elif content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        width, height = _webp_size(content)
        check_pixels(width, height, what, len(content))  # before Pillow allocates memory for it


def _check_png(content: bytes, what: str) -> None:
    """The checksum of every chunk: Pillow leaves out those of the pixels."""
    at = len(PNG)
    while True:
        length = int.from_bytes(content[at : at + 4], "big")
        end = at + 8 + length
        if end + 4 > len(content):
            raise DataError(f"{what} is not a readable picture: it is truncated; get it again, or take it out.")
        if zlib.crc32(memoryview(content)[at + 4 : end]) != int.from_bytes(content[end : end + 4], "big"):
            raise DataError(
                f"{what} is not a readable picture: a checksum is wrong, it is damaged; get it again, or take it out."
            )
        if content[at + 4 : at + 8] == b"IEND":
            return
        at = end + 4


def _webp_size(content: bytes) -> tuple[int, int]:
    """Width and height in the first chunk of a WebP file; (0, 0) where there is none."""
    kind, body = content[12:16], content[20:30]
    if len(body) < 10:
        return 0, 0
    if kind == b"VP8X":
        return int.from_bytes(body[4:7], "little") + 1, int.from_bytes(body[7:10], "little") + 1
    if kind == b"VP8L":
        bits = int.from_bytes(body[1:5], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 ":
        return int.from_bytes(body[6:8], "little") & 0x3FFF, int.from_bytes(body[8:10], "little") & 0x3FFF
    return 0, 0


def _check_tiles(image: Image.Image, what: str) -> None:
    """A TIFF file may announce tiles far larger than its picture, and memory would be reserved for them."""
    tags = getattr(image, "tag_v2", None)
    if tags is None:
        return
    width, height = tags.get(322, 1), tags.get(323, 1)
    most = max(SURELY_FINE, image.width * image.height)
    if not isinstance(width, int) or not isinstance(height, int) or width * height > most:
        raise DataError(f"{what} announces tiles of {width}x{height} pixels; it is not read. Save it again.")
