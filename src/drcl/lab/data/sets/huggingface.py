"""A Hugging Face ``datasets`` object: a DatasetDict with its splits, or two Datasets, train and test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from drcl.lab.data.base import DataSet
from drcl.lab.data.errors import DataError
from drcl.lab.data.formats.samples import as_split
from drcl.lab.data.registry import data_set
from drcl.lab.data.sets.torch_dataset import assembled

IMAGE_COLUMNS = ("image", "img", "pixel_values", "picture")
LABEL_COLUMNS = ("label", "labels", "fine_label", "target")


@data_set(
    "huggingface",
    "your datasets object",
    own=True,
)
def huggingface(
    root: Path,
    data: Any = None,
    train: Any = None,
    test: Any = None,
    image: str | None = None,
    label: str | None = None,
    name: str = "huggingface",
) -> DataSet:
    """Give ``data`` (a DatasetDict with train and test, or train and validation) or ``train`` and ``test``.

    ``image`` and ``label`` name the columns where they are not the usual ones.
    """
    valid = None
    if data is not None:
        try:
            train = data["train"]
        except (KeyError, TypeError) as absent:
            raise DataError("data has no split 'train'; give train= and test= instead.") from absent
        splits = set(data.keys()) if hasattr(data, "keys") else set()
        held_out = [one for one in ("test", "validation", "valid", "val") if one in splits]
        if not held_out:
            raise DataError(
                f"data has the splits {sorted(map(str, splits))}; it needs test or validation beside train."
            )
        test = data[held_out[0]]
        valid = data[held_out[1]] if len(held_out) > 1 else None
    if train is None or test is None:
        raise DataError("huggingface needs data=, or both train= and test=.")
    for part, given in (("train", train), ("test", test)):
        if not hasattr(given, "column_names") or not hasattr(given, "__iter__"):
            raise DataError(f"{part} is a {type(given).__name__}; wanted a datasets object with columns and rows.")
    columns = list(train.column_names)
    image = _column("image", image, IMAGE_COLUMNS, columns)
    label = _column("label", label, LABEL_COLUMNS, columns)

    def pairs(part: Any) -> Iterator[tuple[Any, Any]]:
        for row in part:
            yield row[image], row[label]

    feature = (getattr(train, "features", None) or {}).get(label)
    parts = {split: as_split(pairs(part), split) for split, part in (("train", train), ("test", test))}
    extra = as_split(pairs(valid), "valid") if valid is not None else None
    return assembled(name, parts["train"], parts["test"], extra, getattr(feature, "names", None))


def _column(option: str, chosen: str | None, usual: tuple[str, ...], columns: list[str]) -> str:
    if chosen is not None:
        if chosen not in columns:
            raise DataError(f"{option}={chosen!r} is not a column; there are {', '.join(columns)}.")
        return chosen
    for one in usual:
        if one in columns:
            return one
    raise DataError(f"none of the columns {', '.join(columns)} is a usual {option} column; name it with {option}=.")
