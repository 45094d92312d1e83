"""EMNIST: handwritten digits and letters of NIST, six splits in IDX files (Cohen et al.)."""

from __future__ import annotations

import string
from pathlib import Path

import numpy as np

from drcl.lab.data.base import DataSet, Split
from drcl.lab.data.errors import DataError, MissingData
from drcl.lab.data.folder import find, places
from drcl.lab.data.formats.idx import read_pair
from drcl.lab.data.registry import data_set
from drcl.lab.data.sources import Download

LAYOUTS = ("gzip", "raw", "EMNIST/raw", "EMNIST")
ARCHIVE = "gzip.zip"
ALL = string.digits + string.ascii_uppercase + string.ascii_lowercase
# Merged splits give one class to letters whose small and capital forms look alike, named by the capital.
MERGED = string.digits + string.ascii_uppercase + "abdefghnqrt"
CLASSES = {
    "byclass": ALL,
    "bymerge": MERGED,
    "balanced": MERGED,
    "letters": string.ascii_lowercase,
    "digits": string.digits,
    "mnist": string.digits,
}
FIRST = {"letters": 1}  # the letters split counts its labels from 1


def _file(split: str, part: str, kind: str) -> str:
    return f"emnist-{split}-{part}-{kind}-idx{3 if kind == 'images' else 1}-ubyte"


def _has(root: Path, split: str) -> bool:
    folders = places(root, "emnist", *LAYOUTS)
    files = [_file(split, part, kind) for part in ("train", "test") for kind in ("images", "labels")]
    return all(find(folders, file) for file in files)


@data_set(
    "emnist",
    "digits and letters",
    classes="10 to 62",
    images="814,255",
    size="28x28",
    present=lambda root: any(_has(root, split) for split in CLASSES),
    sources=(
        Download(
            {ARCHIVE: f"https://biometrics.nist.gov/cs_links/EMNIST/{ARCHIVE}"},
            md5={ARCHIVE: "58c8d27c78d21e728a6bc7b3cc06412e"},
        ),
    ),
    archives={ARCHIVE: ""},
    counts={"train": 112_800, "test": 18_800},
    wanted=f"get {ARCHIVE} from https://www.nist.gov/itl/products-and-services/emnist-dataset",
)
def emnist(root: Path, split: str = "balanced") -> DataSet:
    """Images [N, 1, 28, 28] upright: the files store every image transposed, which is undone here."""
    if split not in CLASSES:
        raise DataError(f"split={split!r} is not one of emnist's: {', '.join(CLASSES)}.")
    if not _has(root, split):
        raise MissingData(
            f"emnist's split {split!r} is not in {root}: put {_file(split, 'train', 'images')}.gz and its "
            f"three companions from {ARCHIVE} into {root / 'emnist'}."
        )
    folders = places(root, "emnist", *LAYOUTS)
    parts = []
    for part in ("train", "test"):
        images, labels = (find(folders, _file(split, part, kind)) for kind in ("images", "labels"))
        assert images is not None
        assert labels is not None
        x, y = read_pair(images, labels, len(CLASSES[split]), FIRST.get(split, 0))
        parts.append(Split(np.ascontiguousarray(x.swapaxes(2, 3)), y))
    return DataSet("emnist", parts[0], parts[1], tuple(CLASSES[split]))
