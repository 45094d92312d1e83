"""Reading one file whole, gzipped or not, with a cap so that a small file cannot become a huge one."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from drcl.lab.data.errors import DataError

LARGEST = 8 << 30


def read_bytes(path: Path, limit: int = LARGEST) -> bytes:
    """The content of ``path``, unpacked if it is a gzip file. More than ``limit`` bytes is refused."""
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    try:
        with gzip.open(path, "rb") if packed else path.open("rb") as file:
            content = file.read(limit + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as broken:
        raise DataError(
            f"{path} is a damaged or truncated gzip file ({broken}); delete it and fetch it again."
        ) from broken
    if len(content) > limit:
        raise DataError(f"{path} unpacks to more than {limit:,} bytes, far more than it should; it is not read.")
    return content


def read_lines(path: Path, limit: int = 1 << 28) -> list[str]:
    """The non-empty lines of a small text file, gzipped or not."""
    try:
        text = read_bytes(path, limit).decode("utf-8-sig")
    except UnicodeDecodeError as broken:
        raise DataError(f"{path} should be a text file but is not UTF-8 ({broken.reason}).") from broken
    return [line.strip() for line in text.splitlines() if line.strip()]
