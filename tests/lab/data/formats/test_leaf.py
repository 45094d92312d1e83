"""LEAF's JSON, when it is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.lab.data.miniatures import leaf_json

from drcl.lab.data import DataError, load


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ('{"users": ["a"', "is not JSON"),
        ('{"people": []}', "it is not a LEAF file"),
        ('{"users": ["a"], "user_data": {}}', "lists the user 'a' but has no data"),
        (leaf_json({"a": ([[0.0] * 784], [])}), "has 1 inputs but 0 labels"),
        (leaf_json({"a": ([[0.0] * 783], [1])}), "does not have 784 values"),
        (leaf_json({"a": ([[0.0] * 784], [62])}), "labels 62 to 62; wanted 0 to 61"),
        (leaf_json({"a": ([[2.0] * 784], [1])}), "floats must lie in 0..1"),
        (leaf_json({}), "there are no samples"),
    ],
)
def test_femnist_faults(femnist: Path, content: str, sentence: str) -> None:
    (femnist / "train" / "all_data_1.json").unlink()
    (femnist / "train" / "all_data_0.json").write_text(content)
    with pytest.raises(DataError, match=sentence):
        load("leaf-femnist")
