"""Plain arrays from anywhere, brought to the one form of ``base``: uint8 [N, C, H, W] and int64 labels."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from drcl.lab.data.base import DataSet, Split
from drcl.lab.data.errors import DataError

CHANNELS = (1, 3, 4)


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
    """uint8 as it is; floats in 0..1 scaled and rounded; integers in 0..255 converted; else refused."""
    if x.dtype == np.uint8:
        return x
    low, high = (float(x.min()), float(x.max())) if x.size else (0.0, 0.0)
    if x.dtype == bool:
        return x.astype(np.uint8) * np.uint8(255)
    if np.issubdtype(x.dtype, np.floating):
        if not (low >= 0.0 and high <= 1.0):
            raise DataError(
                f"{what} has float values from {low:g} to {high:g}; floats must lie in 0..1 "
                "(undo any normalisation), or give uint8 in 0..255."
            )
        return np.rint(x * 255.0).astype(np.uint8)
    if np.issubdtype(x.dtype, np.integer) and low >= 0 and high <= 255:
        return x.astype(np.uint8)
    raise DataError(f"{what} has {x.dtype} values from {low:g} to {high:g}; wanted uint8, or floats in 0..1.")


def as_labels(labels: np.ndarray, count: int, what: str) -> np.ndarray:
    """int64 labels [N] or attributes [N, A], as many as there are images."""
    y = np.asarray(labels)
    if y.ndim not in (1, 2) or len(y) != count:
        raise DataError(f"{what} has shape {y.shape} for {count:,} images; wanted one label an image.")
    whole = y.dtype == bool or np.issubdtype(y.dtype, np.integer)
    if not whole and not (np.issubdtype(y.dtype, np.floating) and np.array_equal(y, np.rint(y))):
        raise DataError(f"{what} has {y.dtype} values; labels are whole numbers.")
    y = y.astype(np.int64)
    if y.size and y.min() < 0:
        raise DataError(f"{what} has the label {y.min()}; labels count from 0.")
    return y


def data_set_from(
    arrays: Mapping[str, np.ndarray],
    name: str,
    where: str,
    layout: str | None = None,
) -> DataSet:
    """A data set from ``{train,valid,test}_{images,labels,groups}`` and ``classes``; ``valid`` optional."""
    splits: dict[str, Split] = {}
    for part in ("train", "valid", "test"):
        if part == "valid" and "valid_images" not in arrays:
            continue
        for key in (f"{part}_images", f"{part}_labels"):
            if key not in arrays:
                raise DataError(f"{where} has no array {key!r}; it has {', '.join(sorted(arrays)) or 'none'}.")
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
    return DataSet(name, train, test, _class_names(arrays, splits, where), splits.get("valid"))


def _class_names(arrays: Mapping[str, np.ndarray], splits: Mapping[str, Split], where: str) -> tuple[str, ...]:
    labels = [split.labels for split in splits.values()]
    if labels[0].ndim == 2:
        needed = labels[0].shape[1]
    else:
        needed = max((int(part.max()) + 1 for part in labels if part.size), default=0)
    if "classes" not in arrays:
        return tuple(str(i) for i in range(needed))
    names = tuple(str(name) for name in arrays["classes"])
    if len(names) < needed:
        raise DataError(f"{where} names {len(names)} classes but its labels go up to {needed - 1}.")
    return names


def read_npz(path: Path, name: str | None = None, layout: str | None = None) -> DataSet:
    """The data set in an .npz file. Object arrays are pickles and are not opened."""
    try:
        with np.load(path, allow_pickle=False) as packed:
            arrays = {key: packed[key] for key in packed.files}
    except (zipfile.BadZipFile, EOFError, OSError, AttributeError) as broken:
        raise DataError(f"{path} is not a readable .npz file ({broken}).") from broken
    except ValueError as refused:
        if "pickle" not in str(refused):
            raise DataError(f"{path} is not a readable .npz file ({refused}).") from refused
        raise DataError(
            f"{path} holds a pickle, and opening a pickle can run code hidden in it; "
            "save plain number arrays (and class names as a string array) with numpy.savez."
        ) from refused
    return data_set_from(arrays, name or path.stem, str(path), layout)
