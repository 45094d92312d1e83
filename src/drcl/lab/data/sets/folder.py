"""Your own pictures: a folder with train/CLASS/*.png and test/CLASS/*.png."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from drcl.lab.data.base import DataSet, Split
from drcl.lab.data.decoding import MODES
from drcl.lab.data.errors import DataError, MissingData
from drcl.lab.data.folder import user_path
from drcl.lab.data.images import pictures, read_images
from drcl.lab.data.registry import data_set

TEST_NAMES = ("test", "val", "valid")


@data_set("folder", "your folder of pictures", own=True)
def folder(
    root: Path,
    path: str | Path,
    size: int | None = None,
    channels: int = 3,
    fit: str = "crop",
    budget: int | None = None,
    name: str | None = None,
) -> DataSet:
    """Images [N, channels, size, size] from ``train`` and ``test`` (or ``val``), one folder per class in each.

    With ``train``, ``valid`` (or ``val``) and ``test`` all three are read. ``size`` may be left out when all
    pictures have one size; ``fit="crop"`` takes the central square, ``"squash"`` the whole picture.
    """
    home = user_path(path, "path")
    if not home.exists() and not home.is_absolute():
        home = root / home
    if not home.is_dir():
        raise MissingData(f"path={str(path)!r}: there is no such folder, here or in {root}.")
    if channels not in MODES:
        raise DataError(f"channels={channels!r} must be 1 (grey) or 3 (colour).")
    there = [part for part in ("train", *TEST_NAMES) if (home / part).is_dir()]
    if "train" not in there or len(there) < 2:
        raise DataError(f"{home} needs folders train and test (or val), each with one folder per class; has {there}.")
    test = next(part for part in TEST_NAMES if part in there)
    valid = next((part for part in ("valid", "val") if part in there and part != test), None)
    classes = sorted(inner.name for inner in (home / "train").iterdir() if inner.is_dir())
    if not classes:
        raise DataError(f"{home / 'train'} has no class folders.")

    def split(part: str) -> Split:
        paths, labels = [], []
        for inner in sorted(one for one in (home / part).iterdir() if one.is_dir()):
            if inner.name not in classes:
                raise DataError(f"{inner} is a class that {home / 'train'} does not have.")
            found = pictures(inner)
            paths += found
            labels += [classes.index(inner.name)] * len(found)
        label = f"{name or home.name} {part}"
        images = read_images(paths, root, label, channels=channels, size=size, fit=fit, budget=budget)
        return Split(images, np.array(labels, np.int64))

    train = split("train")
    tested = split(test)
    if train.images.shape[1:] != tested.images.shape[1:]:
        raise DataError(
            f"{home}: train and {test} pictures have different sizes; give size= to resize all to one size."
        )
    return DataSet(name or home.name, train, tested, tuple(classes), split(valid) if valid else None)
