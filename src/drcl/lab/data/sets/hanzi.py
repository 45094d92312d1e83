"""Rendered Chinese characters: thousands of classes from stroke data, written by simulated writers.

The data are synthetic and labelled as such: a result on them says nothing about CASIA-HWDB's scans. The stroke data is
that of hanzi-writer-data, derived from Make Me a Hanzi and Arphic's fonts (Arphic Public License).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from drcl.lab.data.base import DataSet, Split
from drcl.lab.data.decoding import check_size
from drcl.lab.data.errors import DataError
from drcl.lab.data.files import read_bytes, read_json
from drcl.lab.data.folder import find, places
from drcl.lab.data.formats import handwriting
from drcl.lab.data.images import stack
from drcl.lab.data.registry import data_set
from drcl.lab.data.sources import Download, Npm

FILE = "medians.json"
RELEASE = "hanzi-writer-data-2.0.1.tar.gz"
LICENCE = "ARPHICPL.TXT"
LARGEST = 1 << 28  # bytes of the file
MOST_WRITERS = 100_000
MOST_STROKES, MOST_POINTS, FARTHEST = 200, 1000, 4096.0  # of one character; its square has sides of 1024


def gather(folder: Path) -> None:
    """Make one file of the package's thousands, with what is needed: the centre line of every stroke."""
    medians = {}
    for path in folder.rglob("*.json"):
        if len(path.stem) == 1:
            medians[path.stem] = json.loads(path.read_bytes())["medians"]
    licence = next((path.read_bytes() for path in folder.rglob(LICENCE)), b"")
    for path in sorted(folder.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    lines = [f"{json.dumps(name)}: {json.dumps(medians[name])}" for name in sorted(medians)]
    (folder / FILE).write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="ascii", newline="\n")
    (folder / LICENCE).write_bytes(licence)


def order(character: str) -> tuple[int, int]:
    """GB2312's common characters first, then its rarer ones, then the rest, each by code."""
    try:
        code = int.from_bytes(character.encode("gb2312"), "big")
    except UnicodeEncodeError:
        return 2, ord(character)
    return (0 if 0xB0A1 <= code <= 0xD7F9 else 1 if code >= 0xD8A1 else 2), code


def _strokes(path: Path, character: str, medians: Any) -> list[list[list[float]]]:
    """The strokes of a character as lists of points near its square, or an error that names it."""
    right = isinstance(medians, list) and 0 < len(medians) <= MOST_STROKES
    for median in medians if right else ():
        right = right and isinstance(median, list) and 0 < len(median) <= MOST_POINTS
        right = right and all(isinstance(point, list) and len(point) == 2 for point in median)
        right = right and all(
            type(value) in (int, float) and -FARTHEST <= value <= FARTHEST for point in median for value in point
        )
    if not right:
        raise DataError(f"{path}: {character!r} has no strokes that can be drawn; delete it and fetch hanzi again.")
    return medians


@data_set(
    "hanzi",
    "rendered Chinese",
    classes="9,574",
    images="any",
    size="32x32",
    present=lambda root: find(places(root, "hanzi", loose=False), FILE) is not None,
    sources=(
        Download(
            {RELEASE: "https://github.com/chanind/hanzi-writer-data/archive/refs/tags/v2.0.1.tar.gz"},
            prepare=gather,
        ),
        Npm(
            "hanzi-writer-data",
            "2.0.1",
            "72baf3d82b114e60d6e40ea05f24d2262a05cd39d544e2f322ba2fceb7beff15",
            keep="package",
            prepare=gather,
        ),
    ),
    hashes={FILE: "1611fee48b19a15ed82745a967e5eaa914a8c171306c02a999e8ed35c182b6e9"},
    decodes=True,
    wanted=f"get the npm package hanzi-writer-data 2.0.1 and write its medians into {FILE}",
)
def hanzi(
    root: Path,
    classes: int = 3_700,
    writers: int = 25,
    test_writers: int = 5,
    size: int = 32,
    seed: int = 0,
    budget: int | None = None,
) -> DataSet:
    """Images [N, 1, size, size], dark ink on white: each writer writes each of ``classes`` characters once.

    The last ``test_writers`` of the ``writers`` are never seen in training. Groups are the writers. Drawing
    happens once and is kept; a thousand pictures take one or two seconds.
    """
    path = find(places(root, "hanzi", loose=False), FILE)
    assert path is not None
    medians = read_json(path, LARGEST)
    if not isinstance(medians, dict) or not all(len(name) == 1 and name.isprintable() for name in medians):
        raise DataError(f"{path} is not a table of characters; delete it and fetch hanzi again.")
    characters = sorted(medians, key=order)
    if not 1 <= classes <= len(characters):
        raise DataError(f"classes={classes!r} must be 1 to {len(characters):,}, the characters there are.")
    if not 1 <= test_writers < writers:
        raise DataError(f"test_writers={test_writers!r} must be at least 1 and below writers={writers!r}.")
    if writers > MOST_WRITERS:
        raise DataError(f"writers={writers!r} must be at most {MOST_WRITERS:,}.")
    check_size(size, 8, 1024)  # below 8 nothing can be read
    if seed < 0:
        raise DataError(f"seed={seed!r} must be at least 0.")
    chosen = characters[:classes]
    strokes = {character: _strokes(path, character, medians[character]) for character in chosen}
    hands = [handwriting.writer(seed, number) for number in range(writers)]
    split_at = writers - test_writers
    digest = hashlib.sha256(read_bytes(path, LARGEST)).hexdigest()
    form = f"{handwriting.VERSION}|{chosen}|{writers}|{size}|{seed}|{digest}"
    splits = {}
    for part, numbers in (("train", range(split_at)), ("test", range(split_at, writers))):

        def rows(numbers: range = numbers) -> Iterator[np.ndarray]:
            for character in chosen:
                lines = handwriting.centre_lines(strokes[character])
                for number in numbers:
                    yield handwriting.draw(lines, ord(character), hands[number], number, seed, size)

        key = hashlib.sha256(f"{form}|{numbers}".encode()).hexdigest()[:16]
        count = classes * len(numbers)
        images = stack(rows, count, (1, size, size), root, f"hanzi {part}", key, budget)
        labels = np.repeat(np.arange(classes, dtype=np.int64), len(numbers))
        splits[part] = Split(images, labels, np.tile(np.array(numbers, np.int64), classes))
    return DataSet("hanzi", splits["train"], splits["test"], tuple(chosen), synthetic=True)
