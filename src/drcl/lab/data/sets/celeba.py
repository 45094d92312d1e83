"""CelebA: 202,599 aligned faces with 40 yes-or-no attributes and an official partition (Liu et al.)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from drcl.lab.data.base import DataSet, Split
from drcl.lab.data.errors import DataError
from drcl.lab.data.files import inside, read_lines, there, whole_number
from drcl.lab.data.folder import find, need, places
from drcl.lab.data.guard import short
from drcl.lab.data.images import read_images
from drcl.lab.data.registry import data_set

LAYOUTS = (
    "Anno",
    "Eval",
    "img_align_celeba",
    "Img",
    "Img/img_align_celeba",
    "img_align_celeba/img_align_celeba",
)
PARTS = ("train", "valid", "test")  # 0, 1 and 2 in the partition file


def _images(root: Path) -> Path | None:
    for folder in places(root, "celeba", *LAYOUTS):
        if (folder / "000001.jpg").is_file():
            return folder
    return None


@data_set(
    "celeba",
    "faces with attributes",
    classes="40",
    images="202,599",
    size="64x64",
    present=lambda root: (
        _images(root) is not None and find(places(root, "celeba", *LAYOUTS), "list_attr_celeba.txt") is not None
    ),
    archives={"img_align_celeba.zip": ""},
    counts={"train": 162_770, "valid": 19_867, "test": 19_962},
    decodes=True,
    wanted="get img_align_celeba.zip, list_attr_celeba.txt and list_eval_partition.txt (and, if you like, "
    "identity_CelebA.txt) from https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html",
)
def celeba(root: Path, size: int | None = 64, fit: str = "crop", budget: int | None = None) -> DataSet:
    """Images [N, 3, size, size] and labels [N, 40] of 0 and 1 in the order of the attribute list.

    The aligned 178x218 pictures are cut to their central square and shrunk bicubically; ``size=None`` keeps
    them whole. Groups are the celebrities where ``identity_CelebA.txt`` is there.
    """
    folders = places(root, "celeba", *LAYOUTS)
    listed = need(folders, "celeba", "list_attr_celeba.txt")
    attributes, names, labels = _attributes(listed)
    part_of = _column(need(folders, "celeba", "list_eval_partition.txt"))
    apart = next((name for name in names if part_of.get(name, -1) not in range(len(PARTS))), None)
    if apart is not None:
        raise DataError(f"list_eval_partition.txt does not put {short(apart)} into part 0, 1 or 2; get it again.")
    identity = find(folders, "identity_CelebA.txt")
    person_of = _column(identity) if identity is not None else None
    unknown = next((name for name in names if person_of is not None and name not in person_of), None)
    if unknown is not None:
        raise DataError(f"{identity} does not say who is on {short(unknown)}; get it again.")
    home = _images(root)
    assert home is not None
    splits = {}
    for number, part in enumerate(PARTS):
        rows = [row for row, name in enumerate(names) if part_of.get(name) == number]
        if not rows:
            raise DataError(f"list_eval_partition.txt puts no listed picture into {part} ({number}).")
        paths = [inside(home, names[row], listed) for row in rows]
        absent = next((path for path in paths if not there(path)), None)
        if absent is not None:
            raise DataError(
                f"{short(str(absent), 300)} is in the attribute list but not in the folder; unpack the images again."
            )
        images = read_images(paths, root, f"celeba {part}", size=size, fit=fit, budget=budget)
        groups = np.array([person_of[names[row]] for row in rows], np.int64) if person_of is not None else None
        splits[part] = Split(images, labels[rows], groups)
    return DataSet("celeba", splits["train"], splits["test"], attributes, valid=splits["valid"])


def _attributes(path: Path) -> tuple[tuple[str, ...], list[str], np.ndarray]:
    lines = read_lines(path)
    if len(lines) < 3 or whole_number(lines[0]) is None:
        raise DataError(f"{path} should start with the number of pictures and a line of attribute names; get it again.")
    attributes = tuple(lines[1].split())
    names, rows = [], []
    for number, line in enumerate(lines[2:], 3):
        name, *values = line.split()
        if len(values) != len(attributes) or not set(values) <= {"1", "-1"}:
            raise DataError(f"{path}, line {number}: wanted {len(attributes)} values of 1 or -1 for {short(name)}.")
        names.append(name)
        rows.append([value == "1" for value in values])
    if len(names) != whole_number(lines[0]):
        raise DataError(f"{path} announces {lines[0]} pictures but lists {len(names):,}; it is truncated.")
    return attributes, names, np.array(rows, np.int64)


def _column(path: Path) -> dict[str, int]:
    table = {}
    for number, line in enumerate(read_lines(path), 1):
        fields = line.split()
        value = whole_number(fields[1]) if len(fields) == 2 else None
        if value is None:
            raise DataError(f"{path}, line {number}: {short(line)!r} is not a picture name and a number.")
        table[fields[0]] = value
    return table
