"""Reading one file whole, gzipped or not. Memory follows what the file holds, never what its header says."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any, Protocol

from drcl.lab.data.errors import DataError
from drcl.lab.data.guard import reading, short

LARGEST = 8 << 30
LARGEST_TABLE = 64 << 20  # CelebA's list of attributes, the longest text file read here, has 27 million bytes
CHUNK = 1 << 20
# Compressed data that grow beyond both of these are refused as a bomb. Pictures shrink to a half or a tenth.
SURELY_FINE = 64 << 20
RATIO = 200


class Stream(Protocol):
    """Anything that can be read piece by piece."""

    def read(self, size: int, /) -> bytes: ...


def most_unpacked(packed: int, limit: int = LARGEST) -> int:
    """How many bytes ``packed`` compressed bytes may become."""
    return min(limit, max(SURELY_FINE, RATIO * packed))


def read_bytes(path: Path, limit: int = LARGEST) -> bytearray:
    """The content of ``path``, unpacked if it is a gzip file. More than ``limit`` bytes is refused."""
    with reading(path, "cannot be read", "get it again"):
        if not path.is_file():
            raise DataError(f"{path} is not a file that can be read; get it again.")
        size = path.stat().st_size
        if size > limit:
            raise DataError(f"{path} has {size:,} bytes, more than the {limit:,} it can have; it is not read.")
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            if not packed:
                content = bytearray(size)
                del content[file.readinto(content) :]
                return content
    most = most_unpacked(size, limit)
    with (
        reading(path, "is a damaged or truncated gzip file", "delete it and fetch it again"),
        gzip.open(path, "rb") as stream,
    ):
        unpacked = read_stream(stream, most)
        if len(unpacked) > most:
            raise DataError(
                f"{path} unpacks to more than {most:,} bytes, far more than it should; it is not read. "
                "If it is right, unpack it yourself (gunzip)."
            )
    return unpacked


def read_stream(stream: Stream, most: int) -> bytearray:
    """All of a stream, or a little more than ``most`` of it, piece by piece: its length is not known in advance."""
    content = bytearray()
    while len(content) <= most and (chunk := stream.read(CHUNK)):
        content += chunk
    return content


def read_lines(path: Path, limit: int = LARGEST_TABLE) -> list[str]:
    """The non-empty lines of a small text file, gzipped or not."""
    try:
        text = read_bytes(path, limit).decode("utf-8-sig")
    except UnicodeDecodeError as broken:
        raise DataError(f"{path} should be a text file but is not UTF-8 ({broken.reason}); get it again.") from broken
    return [line.strip() for line in text.splitlines() if line.strip()]


def read_json(path: Path, limit: int) -> Any:
    """The content of a JSON file, gzipped or not. The caller must check what is in it."""
    content = read_bytes(path, limit)
    with reading(path, "is not JSON", "it may be truncated, get it again"):
        return json.loads(content)


def whole_number(text: str) -> int | None:
    """The number that ``text`` writes in plain digits, or None. Longer than 18 digits is no count of anything."""
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None


def inside(folder: Path, name: str, table: Path) -> Path:
    """The path of file ``name`` in ``folder``, as ``table`` lists it; a name that leads out of it is refused."""
    if not Path(name).parts or Path(name).is_absolute() or ".." in Path(name).parts:
        raise DataError(f"{table} names {short(name)!r}, which is not the name of a file in {folder}; get it again.")
    return folder / name


def there(path: Path) -> bool:
    """Whether ``path`` is a file; a name longer than the disk allows is not."""
    try:
        return path.is_file()
    except OSError:
        return False
