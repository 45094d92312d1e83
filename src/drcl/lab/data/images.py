"""Folders of pictures to one uint8 array: decoded once, kept as .npy, mapped instead of read when large."""

from __future__ import annotations

import hashlib
import math
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np
from PIL import Image

from drcl.lab.data.decoding import EXTENSIONS, check_size, decode, fitted
from drcl.lab.data.errors import DataError
from drcl.lab.data.folder import default_folder
from drcl.lab.data.formats.npy import map_npy, read_npy, read_npz
from drcl.lab.data.lock import locked
from drcl.lab.data.place import HIDDEN
from drcl.lab.data.progress import bar

BUDGET = 2 << 30  # largest array to keep in memory, in bytes; larger ones are mapped from disk
WORTH_KEEPING = 2_000  # for fewer pictures, decoding again is easier than keeping a cache file
AT_ONCE = 256 << 20  # bytes of decoded pictures that may wait to be written
FITS = ("squash", "crop")
T = TypeVar("T")


def pictures(folder: Path) -> list[Path]:
    """The image files directly in ``folder``, by name."""
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in EXTENSIONS)


def read_images(
    paths: Sequence[Path],
    root: Path,
    what: str,
    channels: int = 3,
    size: int | None = None,
    fit: str = "squash",
    budget: int | None = None,
    invert: bool = False,
) -> np.ndarray:
    """All ``paths`` as one uint8 array [N, C, H, W], through the cache in ``root`` when there are many."""
    if fit not in FITS:
        raise DataError(f"fit={fit!r} is not one of {', '.join(FITS)}.")
    check_size(size)
    if not paths:
        raise DataError(f"{what} holds no pictures ({', '.join(sorted(EXTENSIONS))}).")
    shape = decode(paths[0], channels, size, fit).shape
    together = max(1, min(1024, AT_ONCE // math.prod(shape)))

    def rows() -> Iterator[np.ndarray]:
        with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
            # In slices, so that decoded pictures do not pile up in memory before they are written.
            for start in range(0, len(paths), together):
                part = paths[start : start + together]
                for path, pixels in zip(
                    part, pool.map(lambda one: decode(one, channels, size, fit, invert), part), strict=True
                ):
                    if pixels.shape != shape:
                        raise DataError(
                            f"{path} is {pixels.shape[2]}x{pixels.shape[1]} but {paths[0]} is "
                            f"{shape[2]}x{shape[1]}; give size= to resize all to one size."
                        )
                    yield pixels

    key = fingerprint(paths, f"{channels}|{size}|{fit}|{invert}")
    return stack(rows, len(paths), shape, root, what, key, budget)


def shrunk(images: np.ndarray, size: int, root: Path, what: str, key: str, budget: int | None = None) -> np.ndarray:
    """Images [N, C, H, W] squashed to ``size`` x ``size`` with the same bicubic filter as decoded ones."""

    def rows() -> Iterator[np.ndarray]:
        for image in images:
            whole = Image.fromarray(image[0] if len(image) == 1 else image.transpose(1, 2, 0))
            small = np.asarray(fitted(whole, size))
            yield small[None] if small.ndim == 2 else small.transpose(2, 0, 1)

    return stack(rows, len(images), (images.shape[1], size, size), root, what, key, budget)


def stack(
    rows: Callable[[], Iterable[np.ndarray]],
    count: int,
    shape: tuple[int, ...],
    root: Path,
    what: str,
    key: str,
    budget: int | None = None,
) -> np.ndarray:
    """``count`` rows of ``shape`` as one array: in memory if few, else a .npy named by ``key``.

    The .npy has its SHA-256 in a file beside it. When it is read into memory the two are compared, and a damaged file
    is made again. A file that is only mapped is compared by ``check_kept``, because reading it all takes too long here.
    """
    limit = BUDGET if budget is None else budget
    size = count * math.prod(shape)
    if count < WORTH_KEEPING and size <= limit:
        return _fill(np.empty((count, *shape), np.uint8), rows(), what)
    path = _workplace(root) / f"{_slug(what)}-{key}.npy"

    def write(partial: Path) -> None:
        free = shutil.disk_usage(path.parent).free
        if size > free:  # writing to a map on a full disk ends the process
            raise DataError(
                f"{what} needs {size:,} bytes in {path.parent}, where {free:,} are free; make room, "
                "or set DRCL_DATA to a larger disk."
            )
        target = np.lib.format.open_memmap(partial, mode="w+", dtype=np.uint8, shape=(count, *shape))
        digest = hashlib.sha256()
        _fill(target, rows(), what, digest.update)
        target.flush()
        path.with_suffix(".sha256").write_text(digest.hexdigest(), encoding="ascii")

    return _once(path, lambda: _kept(path, (count, *shape), size > limit), write)


def _kept(path: Path, shape: tuple[int, ...], mapped: bool) -> np.ndarray | None:
    """The kept array if it exists and is intact."""
    if not path.is_file() or not _noted(path):
        return None
    try:
        array = map_npy(path) if mapped else read_npy(path)
    except DataError:
        return None
    if array.dtype != np.uint8 or array.shape != shape or not array.flags.c_contiguous:
        return None
    return array if mapped or _digest(array) == _noted(path) else None


def _digest(array: np.ndarray) -> str:
    return hashlib.sha256(array.reshape(-1).data).hexdigest()


def _noted(path: Path) -> str:
    noted = path.with_suffix(".sha256")
    return noted.read_bytes()[:100].decode("ascii", "replace") if noted.is_file() else ""


def check_kept(root: Path, name: str) -> int:
    """Compare every array kept for data set ``name`` with its SHA-256; return how many there are."""
    count = 0
    for path in sorted(_workplace(root).glob(f"{_slug(name)}-*.npy")):
        try:
            whole = bool(_noted(path)) and _digest(map_npy(path)) == _noted(path)
        except DataError:
            whole = False
        if not whole:
            raise DataError(f"{path} has changed since it was made; delete it, and it will be made again.")
        count += 1
    return count


def keep(
    make: Callable[[], dict[str, np.ndarray]],
    root: Path,
    what: str,
    key: str,
    whole: Callable[[dict[str, np.ndarray]], bool],
) -> dict[str, np.ndarray]:
    """Small arrays that are slow to gather, gathered once; again when ``key`` changes or they are not ``whole``."""
    path = _workplace(root) / f"{_slug(what)}-{key}.npz"

    def read() -> dict[str, np.ndarray] | None:
        try:
            found = read_npz(path)[0]
        except DataError:  # missing, or damaged according to its checksums
            return None
        return found if whole(found) else None

    def write(partial: Path) -> None:
        with partial.open("wb") as file:
            np.savez(file, **make())  # type: ignore[arg-type]

    return _once(path, read, write)


def _once(path: Path, read: Callable[[], T | None], write: Callable[[Path], None]) -> T:
    """The result of ``read``, if necessary after ``write`` has made the file.

    Of several processes only one writes, and none sees a half-written file.
    """
    found = read()
    if found is None:
        with locked(path.with_suffix(".lock")):
            found = read()  # another process was faster
            if found is None:
                partial = path.with_suffix(".partial")
                try:
                    write(partial)
                    os.replace(partial, path)
                finally:
                    partial.unlink(missing_ok=True)
                found = read()
    if found is None:
        raise DataError(f"{path} does not hold what was just written to it; is the disk damaged?")
    return found


def _slug(what: str) -> str:
    """``what`` as part of a file name, whatever characters the user's folder has; the key distinguishes equal names."""
    return re.sub(r"[^\w.-]+", "-", what)[:40]


def _workplace(root: Path) -> Path:
    """Where decoded pictures are kept: with the data, or in the user's own cache when that is read-only."""
    if root.exists() and not os.access(root, os.W_OK):
        root = default_folder()
    return root / HIDDEN / "decoded"


def _fill(
    target: np.ndarray, rows: Iterable[np.ndarray], what: str, tell: Callable[[memoryview], None] | None = None
) -> np.ndarray:
    filled = 0
    with bar(f"reading {what}", len(target)) as advance:
        for row in rows:
            if filled == len(target):
                raise DataError(f"{what} gave more pictures than the {len(target):,} it announced; it has changed.")
            target[filled] = row
            if tell is not None:
                tell(target[filled].reshape(-1).data)
            filled += 1
            advance(1)
    if filled != len(target):
        raise DataError(f"{what} gave {filled:,} pictures instead of {len(target):,}.")
    return target


def fingerprint(paths: Sequence[Path], form: str) -> str:
    """Changes when a file is added, removed, renamed or rewritten, or when another form is asked for."""
    digest = hashlib.sha256(form.encode())
    for path in paths:
        status = path.stat()
        digest.update(f"{path}|{status.st_size}|{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]
