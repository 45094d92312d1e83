"""Omniglot: 1,623 characters of 50 alphabets, each drawn by 20 people (Lake et al.)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from drcl.lab.data.base import DataSet, Split
from drcl.lab.data.errors import DataError
from drcl.lab.data.files import whole_number
from drcl.lab.data.folder import places
from drcl.lab.data.images import pictures, read_images
from drcl.lab.data.registry import data_set
from drcl.lab.data.sources import Download

PARTS = ("images_background", "images_evaluation")
ADDRESS = "https://raw.githubusercontent.com/brendenlake/omniglot/master/python"
TRAIN_DRAWERS = 15  # of 20


def _homes(root: Path) -> list[Path]:
    for folder in places(root, "omniglot", "omniglot-py"):
        if all((folder / part).is_dir() for part in PARTS):
            return [folder / part for part in PARTS]
    return []


@data_set(
    "omniglot",
    "characters, 50 alphabets",
    classes="1,623",
    images="32,460",
    size="28x28",
    present=lambda root: bool(_homes(root)),
    sources=(
        Download(
            {f"{part}.zip": f"{ADDRESS}/{part}.zip" for part in PARTS},
            md5={
                "images_background.zip": "68d2efa1b9178cc56df9314c21c6e718",
                "images_evaluation.zip": "6b91aef0f799c5bb55b94e3f2daec811",
            },
        ),
    ),
    archives={f"{part}.zip": "" for part in PARTS},
    counts={"train": 1_623 * TRAIN_DRAWERS, "test": 1_623 * 5},
    decodes=True,
    wanted="get images_background.zip and images_evaluation.zip from "
    "https://github.com/brendenlake/omniglot/tree/master/python",
)
def omniglot(root: Path, size: int = 28, budget: int | None = None) -> DataSet:
    """Images [N, 1, size, size], ink bright on black, of all characters of both official parts.

    The official parts hold different alphabets, so they cannot be train and test of one classifier. Here
    drawers 1 to 15 of each character are for training and 16 to 20 for testing. Groups are the drawers.
    """
    classes: list[str] = []
    paths: dict[bool, list[Path]] = {True: [], False: []}
    labels: dict[bool, list[int]] = {True: [], False: []}
    drawers: dict[bool, list[int]] = {True: [], False: []}
    for home in _homes(root):
        for folder in sorted(path for path in home.glob("*/*") if path.is_dir()):
            classes.append(f"{folder.parent.name}/{folder.name}")
            for path in pictures(folder):
                drawer = whole_number(path.stem.rpartition("_")[2])  # 0709_05.png: character 709 by drawer 5
                if drawer is None:
                    raise DataError(f"{path} is not named like 0001_01.png, character and drawer; take it out.")
                train = drawer <= TRAIN_DRAWERS
                paths[train].append(path)
                labels[train].append(len(classes) - 1)
                drawers[train].append(drawer)
    splits = {}
    for train, part in ((True, "train"), (False, "test")):
        images = read_images(paths[train], root, f"omniglot {part}", channels=1, size=size, budget=budget, invert=True)
        splits[part] = Split(images, np.array(labels[train], np.int64), np.array(drawers[train], np.int64))
    return DataSet("omniglot", splits["train"], splits["test"], tuple(classes))
