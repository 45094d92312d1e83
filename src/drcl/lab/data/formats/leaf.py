"""LEAF's JSON: files with ``users`` and, for each, ``user_data`` of inputs x and labels y."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drcl.lab.data.errors import DataError
from drcl.lab.data.files import read_bytes
from drcl.lab.data.folder import places

PARTS = ("train", "test")


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
        try:
            content = json.loads(read_bytes(path))
        except (json.JSONDecodeError, UnicodeDecodeError) as broken:
            raise DataError(f"{path} is not JSON ({broken}); it may be truncated.") from broken
        if not isinstance(content, dict) or not {"users", "user_data"} <= content.keys():
            raise DataError(f"{path} has no users and user_data; it is not a LEAF file.")
        for user in content["users"]:
            samples = content["user_data"].get(user)
            if samples is None:
                raise DataError(f"{path} lists the user {user!r} but has no data of theirs.")
            x, y = samples.get("x", []), samples.get("y", [])
            if len(x) != len(y):
                raise DataError(f"{path}: user {user!r} has {len(x)} inputs but {len(y)} labels.")
            rows.x += x
            rows.y += y
            rows.user += [user] * len(y)
    if not rows.y:
        raise DataError(f"{', '.join(map(str, paths))}: there are no samples.")
    return rows
