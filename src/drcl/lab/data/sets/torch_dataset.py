"""Any torch Dataset of (picture, label): its pictures are read once and kept as bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from drcl.lab.data.base import DataSet
from drcl.lab.data.errors import DataError
from drcl.lab.data.formats.arrays import class_names
from drcl.lab.data.formats.samples import as_split
from drcl.lab.data.registry import data_set


def _pairs(dataset: Any, what: str) -> Iterator[tuple[Any, Any]]:
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise DataError(f"{what} is a {type(dataset).__name__}; wanted a Dataset with a length and items.")
    for i in range(len(dataset)):
        sample = dataset[i]
        if not isinstance(sample, tuple | list) or len(sample) < 2:
            raise DataError(f"{what}[{i}] is not a pair of picture and label.")
        yield sample[0], sample[1]


@data_set("torch", "your torch Dataset", own=True)
def torch_dataset(
    root: Path,
    train: Any,
    test: Any,
    valid: Any = None,
    classes: Sequence[str] | None = None,
    name: str = "torch",
) -> DataSet:
    """Pictures may be PIL images, uint8 tensors or float tensors in 0..1, not normalised and not augmented.

    Class names come from ``classes``, else from the data set's own ``classes``, else they are numbers.
    """
    parts = {part: as_split(_pairs(data, part), part) for part, data in (("train", train), ("test", test))}
    extra = as_split(_pairs(valid, "valid"), "valid") if valid is not None else None
    return assembled(name, parts["train"], parts["test"], extra, classes or getattr(train, "classes", None))


def assembled(name: str, train: Any, test: Any, valid: Any, classes: Sequence[str] | None) -> DataSet:
    """Splits with their class names, after checking that they belong together."""
    splits = [split for split in (train, test, valid) if split is not None]
    if len({split.images.shape[1:] for split in splits}) > 1:
        raise DataError(f"{name}: train and test pictures have different shapes.")
    given = [str(one) for one in classes] if classes is not None else None
    return DataSet(name, train, test, class_names([split.labels for split in splits], given, name), valid)
