"""Ways to damage a file of a run or an anchor, as a disk, a copy that was cut off or an editor would."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path


def flip(content: bytes, rng: random.Random) -> bytes:
    """One bit."""
    if not content:
        return b"\x01"
    changed = bytearray(content)
    changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def digit(content: bytes, rng: random.Random) -> bytes:
    """Another digit in place of one: what remains is valid in most texts."""
    places = [i for i, byte in enumerate(content) if 48 <= byte <= 57]
    if not places:
        return flip(content, rng)
    at = rng.choice(places)
    return content[:at] + str((content[at] - 48 + rng.randint(1, 9)) % 10).encode() + content[at + 1 :]


def cut(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.randrange(len(content) + 1)]


def empty(content: bytes, rng: random.Random) -> bytes:
    return b""


def extend(content: bytes, rng: random.Random) -> bytes:
    more = (bytes(rng.randint(1, 64)), rng.randbytes(8), b"\n", b"1,0.5,0.5\n", content[-40:], content)
    return content + rng.choice(more)


def zeros(content: bytes, rng: random.Random) -> bytes:
    """A block that was never written."""
    at = rng.randrange(len(content) + 1)
    length = min(rng.choice((1, 8, 64, 512, 4096)), len(content) - at)
    return content[:at] + bytes(length) + content[at + length :]


def line(content: bytes, rng: random.Random) -> bytes:
    """A line lost, doubled or moved to the end."""
    lines = content.splitlines(keepends=True)
    if len(lines) < 2:
        return cut(content, rng)
    at = rng.randrange(len(lines))
    one = lines.pop(at)
    return b"".join(lines + [[], [one]][rng.randrange(2)] + ([one] if rng.random() < 0.3 else []))


WAYS: dict[str, Callable[[bytes, random.Random], bytes]] = {
    way.__name__: way for way in (flip, digit, cut, empty, extend, zeros, line)
}
ORDER = ("flip", "flip", "flip", "digit", "digit", "cut", "empty", "extend", "zeros", "line", "swap", "delete")


def mutate(path: Path, others: Sequence[Path], rng: random.Random) -> str:
    """Damage one file in one way; ``others`` are files of other runs under the same name."""
    way = rng.choice(ORDER)
    before = path.read_bytes()
    if way == "delete":
        path.unlink()
    elif way == "swap" and others:
        path.write_bytes(rng.choice(others).read_bytes())
    else:
        way = "flip" if way == "swap" else way
        path.write_bytes(WAYS[way](before, rng))
    return way
