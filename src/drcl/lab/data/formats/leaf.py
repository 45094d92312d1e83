"""LEAF's JSON: files with ``users`` and, for each, ``user_data`` of inputs x and labels y."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drcl.lab.data.errors import DataError
from drcl.lab.data.files import read_json
from drcl.lab.data.folder import places
from drcl.lab.data.guard import short

PARTS = ("train", "test")
LARGEST = 4 << 30  # bytes of one file
MOST_LABELS = 1 << 31


@dataclass
class Rows:
    """The samples of one split: inputs, labels and whose they are, side by side."""

    x: list[Any]
    y: list[int]
    user: list[str]


def json_files(root: Path, name: str, short: str, part: str) -> list[Path]:
    """The JSON files of a split, in ``train`` or ``test`` below one of LEAF's usual folders."""
    for folder in places(root, name, "data", f"{short}/data", f"leaf/data/{short}/data", loose=False):
        found = sorted([*(folder / part).glob("*.json"), *(folder / part).glob("*.json.gz")])
        if found:
            return found
    return []


def present(root: Path, name: str, short: str) -> bool:
    """Whether both splits have at least one file."""
    return all(json_files(root, name, short, part) for part in PARTS)


def read_leaf(paths: list[Path]) -> Rows:
    """All samples of these files, users in the files' order."""
    rows = Rows([], [], [])
    for path in paths:
        content = read_json(path, LARGEST)
        if not isinstance(content, dict) or not {"users", "user_data"} <= content.keys():
            raise DataError(f"{path} has no users and user_data; it is not a LEAF file.")
        users, data = content["users"], content["user_data"]
        if not isinstance(users, list) or not isinstance(data, dict) or not all(isinstance(u, str) for u in users):
            raise DataError(f"{path}: users must be a list of names and user_data a table; it is not a LEAF file.")
        for user in users:
            x, y = _samples(path, user, data.get(user))
            rows.x += x
            rows.y += y
            rows.user += [user] * len(y)
        counts = content.get("num_samples")
        if counts is not None and counts != [len(data[user]["y"]) for user in users]:
            raise DataError(f"{path}: num_samples does not agree with the samples there are; get it again.")
    if not rows.y:
        raise DataError(f"{', '.join(map(str, paths))}: there are no samples.")
    return rows


def _samples(path: Path, user: str, samples: Any) -> tuple[list[Any], list[int]]:
    who = f"{path}: user {short(user)!r}"
    if samples is None:
        raise DataError(f"{path} lists the user {short(user)!r} but has no data for this user.")
    x, y = (samples.get("x", []), samples.get("y", [])) if isinstance(samples, dict) else (None, None)
    if not isinstance(x, list) or not isinstance(y, list):
        raise DataError(f"{who} has data that are not lists x and y; it is not a LEAF file.")
    if len(x) != len(y):
        raise DataError(f"{who} has {len(x)} inputs but {len(y)} labels.")
    for label in y:
        if type(label) is not int or not 0 <= label < MOST_LABELS:
            raise DataError(f"{who} has the label {short(repr(label))}; labels are whole numbers from 0. Get it again.")
    return x, y
