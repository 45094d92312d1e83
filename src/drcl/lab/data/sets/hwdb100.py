"""A 100-class subset of CASIA-HWDB as plain arrays, for those who have it as hwdb100.npz."""

from __future__ import annotations

from pathlib import Path

from drcl.lab.data.base import DataSet
from drcl.lab.data.folder import find, places
from drcl.lab.data.formats.arrays import read_npz
from drcl.lab.data.registry import data_set


@data_set(
    "hwdb100",
    "part of casia-hwdb",
    classes="100",
    images="60,064",
    size="32x32",
    present=lambda root: find(places(root, "hwdb100"), "hwdb100.npz") is not None,
    counts={"train": 48_442, "test": 11_622},
    wanted="make hwdb100.npz (arrays {train,test}_images, {train,test}_labels) from 100 classes, "
    "http://www.nlpr.ia.ac.cn/databases/handwriting/Home.html",
)
def hwdb100(root: Path) -> DataSet:
    """Images [N, 1, 32, 32], dark ink on white."""
    path = find(places(root, "hwdb100"), "hwdb100.npz")
    assert path is not None
    return read_npz(path, "hwdb100")
