"""The four IDX files MNIST and Fashion-MNIST share by name; each is looked for in its own folder only."""

from __future__ import annotations

from pathlib import Path

from drcl.lab.data.base import DataSet, Split
from drcl.lab.data.folder import find, need, places
from drcl.lab.data.formats.idx import read_pair

FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


def dotted(name: str) -> str:
    """Some copies spell the files with a dot, as in ``train-images.idx3-ubyte``."""
    return name.replace("-idx", ".idx")


def present(root: Path, name: str, *layouts: str) -> bool:
    folders = places(root, name, *layouts, loose=False)
    return all(find(folders, file, dotted(file)) for file in FILES)


def read(root: Path, name: str, classes: tuple[str, ...], *layouts: str) -> DataSet:
    folders = places(root, name, *layouts, loose=False)
    a, b, c, d = (need(folders, name, file, dotted(file)) for file in FILES)
    train = Split(*read_pair(a, b, len(classes)))
    test = Split(*read_pair(c, d, len(classes)))
    return DataSet(name, train, test, classes)
