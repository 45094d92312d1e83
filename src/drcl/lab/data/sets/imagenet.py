"""ImageNet (ILSVRC 2012): class folders at any size, or the official 32x32 release in its .npz form.

The 32x32 release (Chrabaszcz et al.) comes pickled and as .npz; both store colour planes, red first, and
count labels from 1 in the order of ``map_clsloc.txt``, which is not that of the class folders.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from drcl.lab.data.base import DataSet, Split
from drcl.lab.data.errors import DataError
from drcl.lab.data.files import read_lines, whole_number
from drcl.lab.data.folder import find, places
from drcl.lab.data.formats.npy import read_npz
from drcl.lab.data.guard import short
from drcl.lab.data.images import fingerprint, pictures, read_images, stack
from drcl.lab.data.registry import data_set

CLASSES = 1000
LAYOUTS = ("Imagenet32_train_npz", "Imagenet32_val_npz", "imagenet32", "ILSVRC/Data/CLS-LOC", "ILSVRC2012")
BATCHES = tuple(f"train_data_batch_{i}.npz" for i in range(1, 11))
PICKLED = (
    "it is the pickled form of the 32x32 release, and opening a pickle can run code hidden in it; "
    "take the npz form (Imagenet32_train_npz.zip and Imagenet32_val_npz.zip) from the same page instead"
)


def _folders(root: Path) -> Path | None:
    for folder in places(root, "imagenet", *LAYOUTS, loose=False):
        if (folder / "train").is_dir() and (folder / "val").is_dir():
            return folder
    return None


def _npz(root: Path) -> list[Path] | None:
    places_ = places(root, "imagenet", *LAYOUTS)
    found = [find(places_, file) for file in (*BATCHES, "val_data.npz")]
    return [path for path in found if path is not None] if all(found) else None


@data_set(
    "imagenet",
    "ImageNet 2012",
    classes="1,000",
    images="1,331,167",
    size="any",
    present=lambda root: _npz(root) is not None or _folders(root) is not None,
    archives={
        "Imagenet32_train_npz.zip": "",
        "Imagenet32_val_npz.zip": "",
        "ILSVRC2012_img_train.tar": "train",
        "ILSVRC2012_img_val.tar": "val",
    },
    refused={
        name: PICKLED
        for name in (
            "Imagenet32_train.zip",
            "Imagenet32_val.zip",
            "Imagenet32_train",
            "train_data_batch_1",
            "val_data",
        )
    },
    counts={"train": 1_281_167, "test": 50_000},
    decodes=True,
    wanted="sign in at https://image-net.org/download-images and get Imagenet32_train_npz.zip and "
    "Imagenet32_val_npz.zip, or class folders train/ and val/",
)
def imagenet(root: Path, size: int = 32, budget: int | None = None, fit: str = "crop") -> DataSet:
    """Images [N, 3, size, size]; the official validation images are the test split.

    The 32x32 release is used when ``size`` is 32 and it is there. Class folders are cut to the central square
    (``fit="squash"``: not) and shrunk with a bicubic filter.
    """
    files = _npz(root)
    if size == 32 and files is not None:
        return _read_npz(root, files, budget)
    home = _folders(root)
    if home is None:
        raise DataError(f"size={size}: only the 32x32 release is in {root}; other sizes need the class folders.")
    return _read_folders(root, home, size, budget, fit)


def _read_npz(root: Path, files: list[Path], budget: int | None) -> DataSet:
    train = _release(root, files[:-1], "imagenet 32x32 train", budget)
    test = _release(root, files[-1:], "imagenet 32x32 test", budget)
    names = tuple(str(i) for i in range(1, CLASSES + 1))
    path = find(places(root, "imagenet", *LAYOUTS), "map_clsloc.txt")
    if path is not None:
        names = _class_names(path)
    return DataSet("imagenet", train, test, names)


def _class_names(path: Path) -> tuple[str, ...]:
    """The names in a table whose lines have a class's folder, its number from 1 and its name."""
    names = {}
    for line in read_lines(path):
        fields = line.split()
        number = whole_number(fields[1]) if len(fields) >= 3 else None
        if number is None:
            raise DataError(f"{path}: {short(line)!r} is not a folder, a number and a name; get it again.")
        names[number] = fields[2]
    if set(names) != set(range(1, CLASSES + 1)):
        raise DataError(f"{path} names {len(names)} classes, ImageNet has {CLASSES}, numbered from 1.")
    return tuple(names[number] for number in range(1, CLASSES + 1))


def _release(root: Path, files: list[Path], what: str, budget: int | None) -> Split:
    labels = [_array(path, "labels") for path in files]
    for path, part in zip(files, labels, strict=True):
        if part.ndim != 1 or part.dtype.kind not in "iu":
            raise DataError(f"{path} has labels {part.dtype} {part.shape}; wanted whole numbers [N].")
        if not len(part):
            raise DataError(f"{path} holds no images; get it again.")
        if not (part.min() >= 1 and part.max() <= CLASSES):
            raise DataError(f"{path} has labels {part.min()} to {part.max()}; the release counts from 1 to {CLASSES}.")

    def rows() -> Iterator[np.ndarray]:  # one batch in memory at a time
        for path, part in zip(files, labels, strict=True):
            data = _array(path, "data")
            if data.dtype != np.uint8 or data.shape != (len(part), 3 * 32 * 32):
                raise DataError(f"{path} has data {data.dtype} {data.shape}; wanted uint8 [N, 3072], N = {len(part)}.")
            yield from data.reshape(-1, 3, 32, 32)  # planes: 1,024 red values, then green, then blue

    joined = np.concatenate(labels).astype(np.int64) - 1
    images = stack(rows, len(joined), (3, 32, 32), root, what, fingerprint(files, "planes"), budget)
    return Split(images, joined)


def _array(path: Path, key: str) -> np.ndarray:
    try:
        return read_npz(path, (key,))[0][key]
    except (KeyError, DataError) as broken:
        why = f"it has no {key}" if isinstance(broken, KeyError) else broken
        raise DataError(
            f"{path} is not a batch of the 32x32 release, with plain arrays data and labels: {why}"
        ) from broken


def _read_folders(root: Path, home: Path, size: int, budget: int | None, fit: str) -> DataSet:
    ids = sorted(folder.name for folder in (home / "train").iterdir() if folder.is_dir())
    if not ids:
        raise DataError(f"{home / 'train'} has no class folders.")
    splits = []
    for part, folder in (("train", home / "train"), ("test", home / "val")):
        paths, labels = [], []
        known = {name: label for label, name in enumerate(ids)}
        for path, name in _labelled(folder, home):
            if name not in known:
                raise DataError(f"{path} belongs to class {short(name)}, which has no folder in {home / 'train'}.")
            paths.append(path)
            labels.append(known[name])
        images = read_images(paths, root, f"imagenet {part}", size=size, fit=fit, budget=budget)
        splits.append(Split(images, np.array(labels, np.int64)))
    return DataSet("imagenet", splits[0], splits[1], tuple(ids))


def _labelled(folder: Path, home: Path) -> list[tuple[Path, str]]:
    inner = sorted(path for path in folder.iterdir() if path.is_dir())
    if inner:
        return [(path, group.name) for group in inner for path in pictures(group)]
    table = find([folder, home, home.parent.parent.parent], "LOC_val_solution.csv")
    if table is None:
        raise DataError(
            f"{folder} has no class folders; sort its pictures into folders named by class, "
            "or put LOC_val_solution.csv beside it."
        )
    name_of = {}
    for line in read_lines(table)[1:]:
        match = re.match(r"(\w+),(n\d+)", line)
        if match is None:
            raise DataError(f"{table}: {short(line)!r} does not name a picture and its class.")
        name_of[match[1]] = match[2]
    found = pictures(folder)
    for path in found:
        if path.stem not in name_of:
            raise DataError(f"{table} does not say which class {path.name} has.")
    return [(path, name_of[path.stem]) for path in found]
