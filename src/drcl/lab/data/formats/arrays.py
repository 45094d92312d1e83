"""Plain arrays from anywhere, converted to the form of ``base``: uint8 [N, C, H, W] and int64 labels."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np

from drcl.lab.data.base import DataSet, Split
from drcl.lab.data.errors import DataError
from drcl.lab.data.formats import npy
from drcl.lab.data.guard import reading

CHANNELS = (1, 3, 4)
PARTS = ("train", "valid", "test")
ARRAYS = (*(f"{part}_{kind}" for part in PARTS for kind in ("images", "labels", "groups")), "classes")
MOST_CLASSES = 100_000  # unless there are more images, because each image may be a class


def as_images(images: np.ndarray, what: str, layout: str | None = None) -> np.ndarray:
    """uint8 [N, C, H, W] from NHW, NHWC or NCHW; floats in 0..1 are scaled to 0..255.

    ``layout`` decides where the shape alone does not, as for [N, 3, 3, 3].
    """
    x = np.asarray(images) if not isinstance(images, np.memmap) else images
    if layout is None:
        if x.ndim == 3:
            layout = "NHW"
        elif x.ndim == 4:
            last, first = x.shape[3] in CHANNELS, x.shape[1] in CHANNELS
            if last and first:
                raise DataError(
                    f"{what} has shape {x.shape}, which could be NHWC or NCHW; say layout='NHWC' or 'NCHW'."
                )
            layout = "NHWC" if last else "NCHW" if first else None
    if layout not in ("NHW", "NHWC", "NCHW") or x.ndim != len(layout):
        raise DataError(f"{what} has shape {x.shape}; wanted NHW, NHWC or NCHW with 1, 3 or 4 channels.")
    if layout == "NHW":
        x = x[:, None]
    elif layout == "NHWC":
        x = np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    return as_bytes(x, what)


def as_bytes(x: np.ndarray, what: str) -> np.ndarray:
    """uint8 unchanged; floats in 0..1 scaled and rounded; integers in 0..255 converted; anything else refused."""
    if x.dtype == np.uint8:
        return x
    if x.dtype.kind not in "biuf":
        raise DataError(f"{what} has {x.dtype} values; wanted uint8, or floats in 0..1.")
    if x.dtype.kind == "b":
        return np.where(x, np.uint8(255), np.uint8(0))
    low, high = (float(x.min()), float(x.max())) if x.size else (0.0, 0.0)
    if x.dtype.kind == "f":
        if np.isnan(low):
            raise DataError(f"{what} has values that are not numbers (NaN); floats must lie in 0..1.")
        if not (low >= 0.0 and high <= 1.0):
            raise DataError(
                f"{what} has float values from {low:g} to {high:g}; floats must lie in 0..1 "
                "(undo any normalisation), or give uint8 in 0..255."
            )
        return np.rint(x * 255.0).astype(np.uint8)
    if low >= 0 and high <= 255:
        return x.astype(np.uint8)
    raise DataError(f"{what} has {x.dtype} values from {low:g} to {high:g}; wanted uint8, or floats in 0..1.")


def as_labels(labels: np.ndarray, count: int, what: str) -> np.ndarray:
    """int64 labels [N] or attributes [N, A], as many as there are images."""
    y = np.asarray(labels)
    if y.ndim not in (1, 2) or len(y) != count:
        raise DataError(f"{what} has shape {y.shape} for {count:,} images; wanted one label per image.")
    if y.dtype.kind not in "biuf" or (y.dtype.kind == "f" and not np.array_equal(y, np.rint(y))):
        raise DataError(f"{what} has {y.dtype} values; labels are whole numbers.")
    if y.size and y.min() < 0:
        raise DataError(f"{what} has the label {y.min()}; labels count from 0.")
    if y.size and y.max() >= 1 << 62:
        raise DataError(f"{what} has the label {y.max()}; labels count from 0, without gaps.")
    return np.where(y, np.int64(1), np.int64(0)) if y.dtype.kind == "b" else y.astype(np.int64)


def data_set_from(
    arrays: Mapping[str, np.ndarray],
    name: str,
    where: str,
    layout: str | None = None,
    names: Collection[str] | None = None,
) -> DataSet:
    """A data set from ``{train,valid,test}_{images,labels,groups}`` and ``classes``; ``valid`` optional.

    ``names`` are all the arrays of the file, where only some were read.
    """
    splits: dict[str, Split] = {}
    for part in PARTS:
        if part == "valid" and "valid_images" not in arrays:
            continue
        for key in (f"{part}_images", f"{part}_labels"):
            if key not in arrays:
                have = ", ".join(sorted(names if names is not None else arrays)) or "none"
                raise DataError(f"{where} has no array {key!r}; it has {have}.")
        images = as_images(arrays[f"{part}_images"], f"{part}_images in {where}", layout)
        labels = as_labels(arrays[f"{part}_labels"], len(images), f"{part}_labels in {where}")
        groups = arrays.get(f"{part}_groups")
        if groups is not None:
            groups = as_labels(groups, len(images), f"{part}_groups in {where}")
        splits[part] = Split(images, labels, groups)
    train, test = splits["train"], splits["test"]
    if train.images.shape[1:] != test.images.shape[1:]:
        raise DataError(
            f"{where}: train images are {train.images.shape[1:]} but test images {test.images.shape[1:]}; "
            "both parts need one shape."
        )
    given = _names(arrays["classes"], f"classes in {where}") if "classes" in arrays else None
    classes = class_names([split.labels for split in splits.values()], given, where)
    return DataSet(name, train, test, classes, splits.get("valid"))


def class_names(labels: Sequence[np.ndarray], given: Sequence[str] | None, where: str) -> tuple[str, ...]:
    """The names ``given``, or the numbers as names, enough for these labels."""
    if labels[0].ndim == 2:
        needed = labels[0].shape[1]
    else:
        needed = max((int(part.max()) + 1 for part in labels if part.size), default=0)
    if given is not None and len(given) < needed:
        raise DataError(f"{where} names {len(given)} classes but its labels go up to {needed - 1}.")
    if given is None and needed > max(MOST_CLASSES, sum(len(part) for part in labels)):
        raise DataError(
            f"{where} has the label {needed - 1:,}, far more classes than images; number them from 0 without gaps, "
            "for instance with numpy.unique(labels, return_inverse=True)."
        )
    return tuple(given) if given is not None else tuple(map(str, range(needed)))


def _names(classes: np.ndarray, what: str) -> list[str]:
    if classes.ndim != 1 or classes.dtype.kind not in "USiu":
        raise DataError(f"{what} has {classes.dtype} values of shape {classes.shape}; wanted one text per class.")
    with reading(what, "has names that are not text", "save them again as a string array"):
        return [str(name, "utf-8") if isinstance(name, bytes) else str(name) for name in classes.tolist()]


def read_npz(path: Path, name: str | None = None, layout: str | None = None) -> DataSet:
    """The data set in an .npz file. Object arrays are pickles and are not opened."""
    arrays, names = npy.read_npz(path, ARRAYS)
    return data_set_from(arrays, name or path.stem, str(path), layout, names)
