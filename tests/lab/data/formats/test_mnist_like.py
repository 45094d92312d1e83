"""The four files of MNIST and its kin: gzipped, with dots in their names, in other folders."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
from tests.lab.data.miniatures import FILES, check

from drcl.lab.data import load


def test_gzipped_files_and_dotted_names_and_other_layouts(mnist: tuple[Path, list[np.ndarray]], root: Path) -> None:
    folder, arrays = mnist
    for name in FILES:
        (folder / f"{name}.gz").write_bytes(gzip.compress((folder / name).read_bytes()))
        (folder / name).unlink()
    check(load("mnist"), arrays)
    raw = root / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name in FILES:
        (folder / f"{name}.gz").rename(raw / f"{name.replace('-idx', '.idx')}.gz")
    check(load("mnist"), arrays)
