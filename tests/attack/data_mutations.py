"""Ways to damage a file, or to forge one: the bytes as they lie there, or what is inside with its checksums put right.

The second kind matters because a checksum would otherwise keep every damage from the parser behind it.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import random
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Sequence

PNG = b"\x89PNG\r\n\x1a\n"
NUMBERS = tuple(2**i + j for i in (0, 3, 7, 8, 15, 16, 31, 32, 63, 64) for j in (-1, 0, 1))
TEXTS = (b"-1", b"0", b"1e400", b"NaN", b"4294967296", b"9" * 25, b"9" * 5000, "²".encode(), b"true", b"null", b"0.5")
TOKENS = (
    *(b"null", b"[]", b"{}", b"[" * 5000, b'"\\ud800"', b'"', b"\0", b"\xff", b"../", b"/etc/passwd ", b"\t", b"\n"),
    *(
        b"\r\n",
        b"\x1b[2J",
        b",",
        b" ",
        b"x" * 5000,
        b"<html>",
        b"\x80\x04.",
        b"PK\x03\x04",
        b"\x1f\x8b\x08",
        b"\x93NUMPY",
    ),
)
CHUNKS = (b"IHDR", b"IDAT", b"PLTE", b"tRNS", b"iCCP", b"zTXt", b"acTL", b"fcTL", b"fdAT", b"IEND", b"eXIf")
KINDS = (b"0", b"1", b"2", b"3", b"5", b"6", b"7", b"x", b"g", b"L", b"K", b"S", b"X", b"Z", b"\0")
FIELDS = {"name": (0, 100), "mode": (100, 8), "size": (124, 12), "type": (156, 1), "link": (157, 100), "id": (257, 8)}


def mutated(content: bytes, others: Sequence[bytes], rng: random.Random) -> tuple[bytes, str, bool]:
    """A damaged or forged form of ``content``, in words what was done, and whether its checksums are right.

    They may be after an exchange for another whole file, however little was done to that.
    """
    inner = _forger(content)
    if inner is not None and rng.random() < 0.5:
        try:
            return inner(content, others, rng), f"forged by {inner.__name__}", True
        except (ValueError, IndexError, struct.error, EOFError, zlib.error, OSError, RuntimeError):
            pass  # already damaged too far to be taken apart
    changed, words = damaged(content, others, rng)
    return changed, words, "exchange" in words


def damaged(content: bytes, others: Sequence[bytes], rng: random.Random) -> tuple[bytes, str]:
    """One to three of the ways below, one after the other."""
    done = []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        way = rng.choice(WAYS)
        content = way(content, others, rng)
        done.append(way.__name__)
    return content[: 1 << 20], ", ".join(done)


def _at(content: bytes, rng: random.Random) -> int:
    """Somewhere, more often in the first bytes or the last, where headers and directories are."""
    length = max(1, len(content))
    place = rng.random()
    if place < 0.4:
        return rng.randrange(min(length, 64))
    if place < 0.55:
        return max(0, length - 1 - rng.randrange(min(length, 128)))
    return rng.randrange(length)


def flip(content: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 8)) if changed else 0):
        changed[_at(content, rng)] ^= 1 << rng.randrange(8)
    return bytes(changed)


def poke(content: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    """A number of 1, 2, 4 or 8 bytes that a size or a count may not be."""
    size, at = rng.choice((1, 2, 4, 8)), _at(content, rng)
    number = (rng.choice(NUMBERS) & (1 << 8 * size) - 1).to_bytes(size, rng.choice(("little", "big")))
    return content[:at] + number + content[at + size :]


def cut(content: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    return content[: rng.choice((_at(content, rng), max(0, len(content) - 1 - rng.randrange(600))))]


def grow(content: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    extra = rng.choice((rng.randbytes(rng.randrange(1, 2000)), bytes(rng.randrange(1, 100_000)), content, b"\n", b" "))
    return content + extra


def drop(content: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    at = _at(content, rng)
    return content[:at] + content[at + rng.choice((1, 2, 4, rng.randrange(1, 600))) :]


def repeat(content: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    at = _at(content, rng)
    part = content[at : at + rng.choice((1, 4, rng.randrange(1, 600)))]
    return content[:at] + part * rng.choice((2, 2, 50)) + content[at:]


def swap(content: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    size = rng.choice((1, 2, 4, 8, 64))
    a, b = sorted((_at(content, rng), _at(content, rng)))
    if b - a < size:
        return content[::-1] if rng.random() < 0.1 else content[a:] + content[:a]
    return content[:a] + content[b : b + size] + content[a + size : b] + content[a : a + size] + content[b + size :]


def head(content: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    """The beginning of another format's file."""
    size = rng.choice((4, 8, 16, 64, 128))
    return rng.choice(others)[:size] + content[size:]


def exchange(content: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    return rng.choice(others)


def noise(content: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    return rng.randbytes(rng.choice((0, 1, 2, rng.randrange(3000))))


def number(content: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    """Another number in a text."""
    found = list(re.finditer(rb"[0-9.]+", content[:20_000]))
    if not found:
        return poke(content, others, rng)
    at = rng.choice(found)
    return content[: at.start()] + rng.choice(TEXTS) + content[at.end() :]


def token(content: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    at = _at(content, rng)
    return content[:at] + rng.choice(TOKENS) + content[at + rng.choice((0, 0, 1, 8)) :]


Way = Callable[[bytes, Sequence[bytes], random.Random], bytes]
WAYS: tuple[Way, ...] = (
    *(flip, flip, flip, poke, poke, cut, grow, drop, repeat, swap),
    *(head, exchange, noise, number, token),
)


def _forger(content: bytes) -> Way | None:
    """What can take this file apart and put it together again."""
    if content.startswith(b"\x1f\x8b"):
        return forged_gzip
    if content.startswith(b"PK\x03\x04"):
        return forged_zip
    if content.startswith(PNG):
        return forged_png
    if content[257:262] == b"ustar":
        return forged_tar
    if content.startswith((b"BZh", b"\xfd7zXZ")):
        return forged_packed
    return None


def _inner(content: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    inner = _forger(content)
    if inner is not None and rng.random() < 0.7:
        return inner(content, others, rng)
    return damaged(content, others, rng)[0]


def forged_gzip(content: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    return gzip.compress(_inner(gzip.decompress(content), others, rng), mtime=0)


def forged_packed(content: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    module = bz2 if content.startswith(b"BZh") else lzma
    return module.compress(_inner(module.decompress(content), others, rng))


def forged_zip(content: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    """Another content or another name of one member."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = [(info.filename, info.compress_type, archive.read(info)) for info in archive.infolist()]
    chosen = rng.randrange(len(members))
    name, kind, inner = members[chosen]
    if rng.random() < 0.15:
        name = rng.choice(
            ("../x", "/x", "x" * 300, "a\x1bb", name.upper(), name[1:] or "x", members[0][0], name + "/y")
        )
    else:
        inner = _inner(inner, others, rng)
    if rng.random() < 0.1:
        kind = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA))
    members[chosen : chosen + 1] = [(name, kind, inner)] * rng.choice((0, 1, 1, 1, 1, 1, 1, 1, 2))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for each, packing, inside in members:
            archive.writestr(zipfile.ZipInfo(each), inside, packing)
    return buffer.getvalue()


def forged_png(content: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    """Another content of one chunk, of the pixels before they are compressed, or another order of chunks."""
    chunks, at = [], 8
    while at < len(content):
        length = int.from_bytes(content[at : at + 4], "big")
        chunks.append((content[at + 4 : at + 8], content[at + 8 : at + 8 + length]))
        at += 12 + length
    chosen = rng.randrange(len(chunks))
    kind, body = chunks[chosen]
    way = rng.random()
    if way < 0.3 and kind == b"IDAT":
        body = zlib.compress(damaged(zlib.decompress(body), others, rng)[0])
    elif way < 0.8:
        body = damaged(body, others, rng)[0]
    elif way < 0.9:
        kind = rng.choice(CHUNKS)
    else:
        rng.shuffle(chunks)
        kind, body = chunks[chosen]
    chunks[chosen] = (kind, body)
    whole = PNG
    for kind, body in chunks:
        whole += struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    return whole


def forged_tar(content: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    """Another field of one header, with the header's sum put right."""
    headers = [at for at in range(0, len(content) - 511, 512) if content[at + 257 : at + 262] == b"ustar"]
    at = rng.choice(headers)
    header = bytearray(content[at : at + 512])
    field = rng.choice(list(FIELDS))
    start, length = FIELDS[field]
    if field == "size":
        new = _tar_number(rng.choice((-512, -1, 0, 1, 511, 1 << 20, 7 << 30, 1 << 62)))
    elif field == "type":
        new = rng.choice(KINDS)
    elif field in ("name", "link"):
        new = rng.choice((b"../../x", b"/x", b"", b"a/" * 49, b"\xff\xfe", b"x\\y", b"C:x", b"x\0y"))
    else:
        new = damaged(bytes(header[start : start + length]), others, rng)[0]
    header[start : start + length] = new.ljust(length, b"\0")[:length]
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return content[:at] + bytes(header) + content[at + 512 :]


def _tar_number(value: int) -> bytes:
    """Octal where it fits; large and negative numbers as 11 bytes after a mark."""
    if 0 <= value < 1 << 33:
        return b"%011o\0" % value
    return (b"\xff" if value < 0 else b"\x80") + (value & (1 << 88) - 1).to_bytes(11, "big")
