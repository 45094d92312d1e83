"""CUB-200-2011: 11,788 photographs of 200 kinds of birds, described by text files (Wah et al.)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from drcl.lab.data.base import DataSet, Split
from drcl.lab.data.errors import DataError
from drcl.lab.data.files import inside, read_lines, there, whole_number
from drcl.lab.data.folder import places
from drcl.lab.data.guard import short
from drcl.lab.data.images import read_images
from drcl.lab.data.registry import data_set
from drcl.lab.data.sources import Download

LAYOUT = "CUB_200_2011"
ARCHIVE = "CUB_200_2011.tgz"
TABLES = ("images.txt", "image_class_labels.txt", "train_test_split.txt", "classes.txt")


def _home(root: Path) -> Path | None:
    for folder in places(root, "cub200", LAYOUT):
        if (folder / "images").is_dir() and all((folder / table).is_file() for table in TABLES):
            return folder
    return None


@data_set(
    "cub200",
    "kinds of birds",
    classes="200",
    images="11,788",
    size="64x64",
    present=lambda root: _home(root) is not None,
    sources=(
        Download(
            {ARCHIVE: f"https://data.caltech.edu/records/65de6-vp158/files/{ARCHIVE}"},
            md5={ARCHIVE: "97eceeb196236b17998738112f37df78"},
        ),
    ),
    archives={ARCHIVE: ""},
    counts={"train": 5_994, "test": 5_794},
    decodes=True,
    wanted=f"get {ARCHIVE} from https://www.vision.caltech.edu/datasets/cub_200_2011/",
)
def cub200(root: Path, size: int = 64, fit: str = "squash", budget: int | None = None) -> DataSet:
    """Images [N, 3, size, size] of the official split; ``fit="crop"`` takes the central square first."""
    home = _home(root)
    assert home is not None
    names = _table(home / "classes.txt")
    files = _table(home / "images.txt")
    label_of = _table(home / "image_class_labels.txt")
    is_train = _table(home / "train_test_split.txt")
    if not files.keys() == label_of.keys() == is_train.keys():
        raise DataError(f"the tables of {home} do not list the same pictures: {', '.join(TABLES[:3])}.")
    wrong = next((number for number, flag in is_train.items() if flag not in ("0", "1")), None)
    if wrong is not None:
        raise DataError(f"train_test_split.txt gives picture {wrong} {short(is_train[wrong])!r}; wanted 1 or 0.")
    position = {number: label for label, number in enumerate(sorted(names, key=int))}
    splits = []
    for part, flag in (("train", "1"), ("test", "0")):
        chosen = [number for number in sorted(files, key=int) if is_train[number] == flag]
        paths, labels = [], []
        for number in chosen:
            if label_of[number] not in position:
                raise DataError(
                    f"image_class_labels.txt gives picture {number} the unknown class {short(label_of[number])}."
                )
            paths.append(inside(home / "images", files[number], home / "images.txt"))
            labels.append(position[label_of[number]])
            if not there(paths[-1]):
                raise DataError(
                    f"{short(str(paths[-1]), 300)} is in images.txt but not in the folder; unpack {ARCHIVE} again."
                )
        images = read_images(paths, root, f"cub200 {part}", size=size, fit=fit, budget=budget)
        splits.append(Split(images, np.array(labels, np.int64)))
    classes = tuple(names[number].split(".", 1)[-1].replace("_", " ") for number in sorted(names, key=int))
    return DataSet("cub200", splits[0], splits[1], classes)


def _table(path: Path) -> dict[str, str]:
    """Rows of a number and a value, by number."""
    rows = {}
    for line_number, line in enumerate(read_lines(path), 1):
        number, _, value = line.partition(" ")
        if whole_number(number) is None or not value:
            raise DataError(f"{path}, line {line_number}: {short(line)!r} is not a number and a value.")
        rows[number] = value.strip()
    return rows
