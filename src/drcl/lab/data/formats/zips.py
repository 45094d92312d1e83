"""The directory of a zip file, which has no checksum of its own and is therefore checked twice."""

from __future__ import annotations

import zipfile
from pathlib import Path

LONGEST_END = 22 + 65_535 + 20 + 56  # bytes: the last record with the longest comment, and two more of large files


def members(archive: zipfile.ZipFile, path: Path) -> list[zipfile.ZipInfo]:
    """Everything in ``archive``. Its directory must have as many entries as the last record says.

    zipfile reads what the directory shows. It misses an entry that damage has hidden, for example in the comment of the
    previous one. The number in the last record has 16 bits, or 64 in its own record.
    """
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - LONGEST_END))
        tail = file.read(LONGEST_END)
    found = archive.infolist()
    at, large = tail.rfind(b"PK\x05\x06"), tail.rfind(b"PK\x06\x06")
    announced = int.from_bytes(tail[at + 10 : at + 12], "little")
    right = announced == len(found) % (1 << 16)
    if announced == 0xFFFF and large >= 0:
        right = int.from_bytes(tail[large + 32 : large + 40], "little") == len(found)
    if not right:
        raise zipfile.BadZipFile("its directory does not have as many entries as it announces")
    return found
