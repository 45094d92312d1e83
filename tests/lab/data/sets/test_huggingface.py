"""Hugging Face datasets objects, by their columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from drcl.lab.data import DataError, load


class ClassLabel:
    names = ("no", "yes")


class Table:
    """The parts of a ``datasets.Dataset`` that are used: column_names, features and iteration over rows."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows
        self.column_names = list(rows[0])
        self.features = {"label": ClassLabel()} if "label" in rows[0] else {}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)


def test_huggingface_objects(root: Path, pixels: Callable) -> None:
    raw = pixels(3, 6, 6, 3)
    table = Table([{"img": Image.fromarray(x), "label": i % 2} for i, x in enumerate(raw)])
    data = load("huggingface", data={"train": table, "test": table, "validation": table})
    np.testing.assert_array_equal(data.train.images, raw.transpose(0, 3, 1, 2))
    assert data.train.labels.tolist() == [0, 1, 0]
    assert data.classes == ("no", "yes")
    assert data.valid is not None
    other = Table([{"scan": Image.fromarray(x), "kind": 1, "label": 0} for x in raw])
    data = load("huggingface", train=other, test=other, image="scan", label="kind")
    assert data.test.labels.tolist() == [1, 1, 1]
    with pytest.raises(DataError, match="none of the columns scan, kind, label is a usual image column"):
        load("huggingface", train=other, test=other)
    with pytest.raises(DataError, match="image='photo' is not a column; there are scan, kind, label"):
        load("huggingface", train=other, test=other, image="photo")
    with pytest.raises(DataError, match="it needs test or validation beside train"):
        load("huggingface", data={"train": other})
    with pytest.raises(DataError, match="needs data=, or both train= and test="):
        load("huggingface", train=other)
