"""The last check of what a reader returned, before streams cut tasks from it: is it a data set at all?"""

from __future__ import annotations

import re

import numpy as np

from drcl.lab.data.base import DataSet, Split
from drcl.lab.data.errors import DataError

CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")  # characters that control terminals or cannot be written


def sound(data: DataSet) -> DataSet:
    """``data`` itself, or an error that says which split is empty, of another shape or mislabelled."""
    parts = {part: getattr(data, part) for part in ("train", "valid", "test")}
    splits = {part: split for part, split in parts.items() if split is not None}
    shape = data.train.images.shape[1:]
    for part, split in splits.items():
        _check(split, f"{data.name} {part}", len(data.classes))
        if split.images.shape[1:] != shape:
            raise DataError(
                f"{data.name}: train images are {shape} but {part} images {split.images.shape[1:]}; "
                "all parts need one shape."
            )
        if split.labels.ndim != data.train.labels.ndim:
            raise DataError(f"{data.name}: {part} has other kinds of labels than train (classes against attributes).")
    for name in data.classes:
        if CONTROL.search(name):
            raise DataError(f"{data.name} has the class {name[:80]!r}, a name with control characters; rename it.")
    return data


def _check(split: Split, what: str, classes: int) -> None:
    images, labels, groups = split.images, split.labels, split.groups
    if images.dtype != np.uint8 or images.ndim != 4:
        raise DataError(f"{what} has images {images.dtype} {images.shape}; wanted uint8 [N, C, H, W].")
    if 0 in images.shape:
        raise DataError(f"{what} holds no images, or images without pixels ({'x'.join(map(str, images.shape))}).")
    if labels.dtype != np.int64 or labels.ndim not in (1, 2) or len(labels) != len(images):
        raise DataError(f"{what} has {len(images):,} images but labels {labels.dtype} {labels.shape}.")
    if labels.ndim == 2 and (labels.shape[1] != classes or not ((labels == 0) | (labels == 1)).all()):
        raise DataError(f"{what} has attributes {labels.shape} that are not 0 or 1 for each of {classes:,} names.")
    if labels.ndim == 1 and not (labels.min() >= 0 and labels.max() < classes):
        raise DataError(f"{what} has labels {labels.min()} to {labels.max()}; it has {classes:,} classes, from 0.")
    if groups is not None and (groups.dtype != np.int64 or groups.shape != (len(images),)):
        raise DataError(f"{what} has groups {groups.dtype} {groups.shape}; wanted one whole number per image.")
