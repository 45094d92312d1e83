"""LEAF's FEMNIST: EMNIST's digits and letters with their 3,500 writers, from LEAF's JSON (Caldas et al.)."""

from __future__ import annotations

import string
from pathlib import Path

import numpy as np

from drcl.lab.data.base import DataSet, Split
from drcl.lab.data.errors import DataError
from drcl.lab.data.formats import leaf
from drcl.lab.data.formats.arrays import as_bytes
from drcl.lab.data.guard import reading
from drcl.lab.data.registry import data_set

CLASSES = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)


@data_set(
    "leaf-femnist",
    "characters, by writer",
    classes="62",
    images="sampled",
    size="28x28",
    present=lambda root: leaf.present(root, "leaf-femnist", "femnist"),
    decodes=True,
    wanted="run data/femnist/preprocess.sh of https://github.com/TalwalkarLab/leaf "
    "(`-s iid --sf 0.01` is one per cent), take its folders data/train and data/test",
)
def leaf_femnist(root: Path) -> DataSet:
    """Images [N, 1, 28, 28] as LEAF stores them, dark ink on white; groups are the writers."""
    rows = {part: leaf.read_leaf(leaf.json_files(root, "leaf-femnist", "femnist", part)) for part in leaf.PARTS}
    writers = {user: i for i, user in enumerate(sorted({user for part in rows.values() for user in part.user}))}
    splits = {}
    for part, samples in rows.items():
        if any(not isinstance(x, list) or len(x) != 28 * 28 for x in samples.x):
            raise DataError(f"leaf-femnist {part}: an image does not have 784 values; get it again.")
        with reading(f"leaf-femnist {part}", "has values that are not numbers in 0..1"):
            values = np.array(samples.x, np.float64).reshape(-1, 1, 28, 28)
        images = as_bytes(values, f"leaf-femnist {part}")
        labels = np.array(samples.y, np.int64)
        if not (labels.min() >= 0 and labels.max() < len(CLASSES)):
            raise DataError(f"leaf-femnist {part} has labels {labels.min()} to {labels.max()}; wanted 0 to 61.")
        splits[part] = Split(images, labels, np.array([writers[user] for user in samples.user], np.int64))
    return DataSet("leaf-femnist", splits["train"], splits["test"], CLASSES)
