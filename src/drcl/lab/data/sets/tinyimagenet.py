"""TinyImageNet: 200 classes of ImageNet at 64x64, 500 + 50 images each (Stanford CS231n)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from drcl.lab.data.base import DataSet, Split
from drcl.lab.data.errors import DataError
from drcl.lab.data.files import inside, read_lines, there
from drcl.lab.data.folder import places
from drcl.lab.data.guard import short
from drcl.lab.data.images import pictures, read_images
from drcl.lab.data.registry import data_set
from drcl.lab.data.sources import Download

LAYOUT = "tiny-imagenet-200"
ARCHIVE = "tiny-imagenet-200.zip"


def _home(root: Path) -> Path | None:
    for folder in places(root, "tinyimagenet", LAYOUT, loose=False):
        if (folder / "train").is_dir() and (folder / "val").is_dir():
            return folder
    return None


@data_set(
    "tinyimagenet",
    "small ImageNet",
    classes="200",
    images="110,000",
    size="64x64",
    present=lambda root: _home(root) is not None,
    sources=(
        Download(
            {ARCHIVE: f"http://cs231n.stanford.edu/{ARCHIVE}"},
            md5={ARCHIVE: "90528d7ca1a48142e341f4ef8d21d0de"},
        ),
    ),
    archives={ARCHIVE: ""},
    counts={"train": 100_000, "test": 10_000},
    decodes=True,
    wanted=f"get {ARCHIVE} from http://cs231n.stanford.edu/",
)
def tinyimagenet(root: Path, size: int = 64, budget: int | None = None) -> DataSet:
    """Images [N, 3, size, size]; the official validation images are the test split.

    ``size=32`` shrinks with a bicubic filter, the form most continual-learning papers use.
    """
    home = _home(root)
    assert home is not None
    ids = sorted(folder.name for folder in (home / "train").iterdir() if folder.is_dir())
    if not ids:
        raise DataError(f"{home / 'train'} has no class folders; unpack {ARCHIVE} again.")
    train, train_labels = [], []
    for label, name in enumerate(ids):
        folder = home / "train" / name
        found = pictures(folder / "images" if (folder / "images").is_dir() else folder)
        train += found
        train_labels += [label] * len(found)
    test, test_labels = _validation(home / "val", {name: label for label, name in enumerate(ids)})
    splits = []
    for part, paths, labels in (("train", train, train_labels), ("test", test, test_labels)):
        images = read_images(paths, root, f"tinyimagenet {part}", size=size, budget=budget)
        splits.append(Split(images, np.array(labels, np.int64)))
    return DataSet("tinyimagenet", splits[0], splits[1], _words(home, ids))


def _validation(folder: Path, label_of: dict[str, int]) -> tuple[list[Path], list[int]]:
    notes = folder / "val_annotations.txt"
    paths, labels = [], []
    if notes.is_file():
        for number, line in enumerate(read_lines(notes), 1):
            fields = line.split("\t")
            if len(fields) < 2 or fields[1] not in label_of:
                raise DataError(f"{notes}, line {number}: {short(line)!r} does not name a picture and a known class.")
            path = inside(folder / "images", fields[0], notes)
            if not there(path):
                raise DataError(f"{notes} names {short(fields[0])}, which is not in {path.parent}.")
            paths.append(path)
            labels.append(label_of[fields[1]])
        return paths, labels
    for name, label in label_of.items():  # a common rearrangement: one folder per class
        inner = folder / name
        if not inner.is_dir():
            raise DataError(f"{folder} has neither val_annotations.txt nor a folder for class {name}.")
        found = pictures(inner / "images" if (inner / "images").is_dir() else inner)
        paths += found
        labels += [label] * len(found)
    return paths, labels


def _words(home: Path, ids: list[str]) -> tuple[str, ...]:
    path = home / "words.txt"
    if not path.is_file():
        return tuple(ids)
    words = dict(line.split("\t", 1) for line in read_lines(path) if "\t" in line)
    return tuple(words.get(name, name).split(",")[0] for name in ids)
