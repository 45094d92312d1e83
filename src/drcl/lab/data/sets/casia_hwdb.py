"""CASIA-HWDB: scans of handwritten Chinese characters, one .gnt file per writer, versions 1.0, 1.1 and 1.2."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from drcl.lab.data.base import DataSet, Split
from drcl.lab.data.errors import DataError, MissingData
from drcl.lab.data.folder import places
from drcl.lab.data.formats.gnt import character, is_hanzi, read_gnt
from drcl.lab.data.images import fingerprint, keep, stack
from drcl.lab.data.registry import data_set

VERSIONS = ("1.0", "1.1", "1.2")
PARTS = {"train": ("trn_gnt", "train_gnt", "Train"), "test": ("tst_gnt", "test_gnt", "Test")}


def _files(root: Path, version: str, part: str) -> list[Path]:
    found: set[Path] = set()
    for folder in places(root, "casia-hwdb"):
        for ending in PARTS[part]:
            for pattern in (f"HWDB{version}{ending}*", f"Gnt{version}{ending}*"):
                for place in folder.glob(pattern):
                    if place.is_dir():
                        found.update(place.rglob("*.gnt"))
    return sorted(found, key=lambda path: (path.name, str(path)))


def _versions(root: Path) -> list[str]:
    return [v for v in VERSIONS if _files(root, v, "train") and _files(root, v, "test")]


@data_set(
    "casia-hwdb",
    "handwritten Chinese",
    classes="3,755+",
    images="1,121,749",
    size="32x32",
    present=lambda root: bool(_versions(root)),
    archives={
        f"HWDB{version}{part}_gnt.zip": f"HWDB{version}{part}_gnt" for version in VERSIONS for part in ("trn", "tst")
    },
    decodes=True,
    wanted="get HWDB1.1trn_gnt.zip and HWDB1.1tst_gnt.zip (or version 1.0's) from "
    "http://www.nlpr.ia.ac.cn/databases/handwriting/Download.html, unpack their .gnt files (an .alz inside "
    "needs an ALZ program) into folders HWDB1.1trn_gnt and HWDB1.1tst_gnt",
)
def casia_hwdb(
    root: Path, version: str | None = None, size: int = 32, symbols: bool = False, budget: int | None = None
) -> DataSet:
    """Images [N, 1, size, size], dark ink on white as scanned, padded to a square, shrunk bicubically.

    Classes are ordered by GB code, so that the 3,755 common characters come before the rarer ones.
    ``version`` defaults to 1.1 if it is there; ``symbols=True`` keeps the letters, digits and signs of
    version 1.0. Groups are the writers.
    """
    there = _versions(root)
    version = version or ("1.1" if "1.1" in there else there[0])
    if version not in there:
        raise MissingData(
            f"version={version!r} of casia-hwdb is not in {root}, there is {', '.join(there)}: "
            f"put its .gnt files into {root / 'casia-hwdb' / f'HWDB{version}trn_gnt'} and ...tst_gnt."
        )
    files = {part: _files(root, version, part) for part in PARTS}
    first = {"train": 0, "test": len(files["train"])}  # the numbers of writers continue from train to test
    form = f"{version}|{symbols}"
    index = {
        part: keep(
            lambda paths=paths, part=part: _index(paths, first[part], symbols),  # type: ignore[misc]
            root,
            f"casia-hwdb {version} {part} index",
            fingerprint(paths, form),
            _whole,
        )
        for part, paths in files.items()
    }
    order = np.unique(np.concatenate([index[part]["code"] for part in PARTS]))
    splits = {}
    for part, paths in files.items():
        codes = index[part]["code"]
        if not len(codes):
            raise DataError(f"casia-hwdb {version} has no Chinese characters in its {part} files.")
        images = stack(
            lambda paths=paths: (  # type: ignore[misc]
                squared(pixels, size) for path in paths for code, pixels in read_gnt(path) if symbols or is_hanzi(code)
            ),
            len(codes),
            (1, size, size),
            root,
            f"casia-hwdb {version} {part}",
            fingerprint(paths, f"{form}|{size}"),
            budget,
        )
        splits[part] = Split(images, np.searchsorted(order, codes).astype(np.int64), index[part]["writer"])
    classes = tuple(character(int(code).to_bytes(2, "big"), files["train"][0].parent) for code in order)
    return DataSet("casia-hwdb", splits["train"], splits["test"], classes)


def _index(paths: list[Path], first: int, symbols: bool) -> dict[str, np.ndarray]:
    """GB code and writer of every record: most of the work of reading, so it is kept."""
    codes, writers = [], []
    for number, path in enumerate(paths, first):
        for code, _ in read_gnt(path):
            if symbols or is_hanzi(code):
                character(code, path)  # a wrong code is reported with its file
                codes.append(int.from_bytes(code, "big"))
                writers.append(number)
    return {"code": np.array(codes, np.int64), "writer": np.array(writers, np.int64)}


def _whole(index: dict[str, np.ndarray]) -> bool:
    """Whether a kept index can be one."""
    code, writer = index.get("code"), index.get("writer")
    if code is None or writer is None or code.ndim != 1 or code.shape != writer.shape:
        return False
    plain = code.dtype == writer.dtype == np.int64
    return plain and bool(((code >= 0) & (code < 1 << 16) & (writer >= 0)).all())


def squared(pixels: np.ndarray, size: int) -> np.ndarray:
    """A grey image centred on a white square and brought to [1, size, size]."""
    height, width = pixels.shape
    side = max(height, width)
    square = np.full((side, side), 255, np.uint8)
    top, left = (side - height) // 2, (side - width) // 2
    square[top : top + height, left : left + width] = pixels
    if side != size:
        square = np.asarray(Image.fromarray(square).resize((size, size), Image.Resampling.BICUBIC))
    return square[None]
