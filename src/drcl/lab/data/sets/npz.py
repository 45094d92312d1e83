"""Your own arrays: one .npz with {train,test}_images, {train,test}_labels and, if you like, classes."""

from __future__ import annotations

from pathlib import Path

from drcl.lab.data.base import DataSet
from drcl.lab.data.errors import MissingData
from drcl.lab.data.files import there
from drcl.lab.data.folder import user_path
from drcl.lab.data.formats.arrays import read_npz
from drcl.lab.data.registry import data_set


@data_set("npz", "your arrays in a file", own=True)
def npz(root: Path, path: str | Path, layout: str | None = None, name: str | None = None) -> DataSet:
    """Images as NHW, NHWC or NCHW, uint8 or floats in 0..1; ``layout`` only where the shape does not tell.

    A relative ``path`` that does not exist here is looked for in the data folder.
    """
    chosen = user_path(path, "path")
    if not chosen.exists() and not chosen.is_absolute():
        chosen = root / chosen
    if not there(chosen):
        raise MissingData(f"path={str(path)!r}: there is no such file, here or in {root}.")
    return read_npz(chosen, name, layout)
