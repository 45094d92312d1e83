"""Folders of pictures to one uint8 array: decoded once, kept as .npy, mapped instead of read when large."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from drcl.lab.data.errors import DataError
from drcl.lab.data.folder import default_folder
from drcl.lab.data.lock import locked
from drcl.lab.data.place import HIDDEN
from drcl.lab.data.progress import bar

BUDGET = 2 << 30  # bytes of one array that may sit in memory; a larger one is mapped from disk
WORTH_KEEPING = 2_000  # fewer pictures are decoded again faster than a cache file is looked after
EXTENSIONS = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"})
MODES = {1: "L", 3: "RGB"}
FITS = ("squash", "crop")


def pictures(folder: Path) -> list[Path]:
    """The image files directly in ``folder``, by name."""
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in EXTENSIONS)


def fitted(image: Image.Image, size: int | None, fit: str = "squash") -> Image.Image:
    """``image`` at ``size`` x ``size``, bicubic: squashed, or cut to its central square first."""
    if size is None or image.size == (size, size):
        return image
    if fit == "crop":
        side = min(image.size)
        left, top = (image.width - side) // 2, (image.height - side) // 2
        image = image.crop((left, top, left + side, top + side))
    return image.resize((size, size), Image.Resampling.BICUBIC)


def decode(path: Path, channels: int, size: int | None, fit: str, invert: bool = False) -> np.ndarray:
    """One picture as uint8 [C, H, W]; ``invert`` turns dark ink on white into bright ink on black."""
    try:
        with Image.open(path) as image:
            pixels = np.asarray(fitted(image.convert(MODES[channels]), size, fit))
    except (UnidentifiedImageError, OSError, SyntaxError, Image.DecompressionBombError) as broken:
        raise DataError(f"{path} is not a readable picture ({broken}).") from broken
    if invert:
        pixels = 255 - pixels
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)


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
    if size is not None and size < 1:
        raise DataError(f"size={size!r} must be at least 1.")
    if not paths:
        raise DataError(f"{what} holds no pictures ({', '.join(sorted(EXTENSIONS))}).")
    shape = decode(paths[0], channels, size, fit).shape

    def rows() -> Iterator[np.ndarray]:
        with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
            # In slices, so that decoded pictures never pile up faster than they are written.
            for start in range(0, len(paths), 1024):
                part = paths[start : start + 1024]
                for path, pixels in zip(
                    part, pool.map(lambda one: decode(one, channels, size, fit, invert), part), strict=True
                ):
                    if pixels.shape != shape:
                        raise DataError(
                            f"{path} is {pixels.shape[2]}x{pixels.shape[1]} but {paths[0]} is "
                            f"{shape[2]}x{shape[1]}; give size= to bring them to one."
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
    """``count`` rows of ``shape`` as one array: in memory if few, else a .npy named by ``key``."""
    limit = BUDGET if budget is None else budget
    size = count * int(np.prod(shape))
    if count < WORTH_KEEPING and size <= limit:
        return _fill(np.empty((count, *shape), np.uint8), rows(), what)
    place = _workplace(root)
    path = place / f"{what.replace('/', '-').replace(' ', '-')}-{key}.npy"

    def write(partial: Path) -> None:
        target = np.lib.format.open_memmap(partial, mode="w+", dtype=np.uint8, shape=(count, *shape))
        _fill(target, rows(), what)
        target.flush()

    _once(path, write)
    # Copy-on-write keeps the file safe and gives torch the writable memory it asks for.
    return np.load(path, mmap_mode="c") if size > limit else np.load(path)


def keep(make: Callable[[], dict[str, np.ndarray]], root: Path, what: str, key: str) -> dict[str, np.ndarray]:
    """Small arrays that are slow to gather, gathered once; ``key`` changes when they must be made again."""
    path = _workplace(root) / f"{what.replace(' ', '-')}-{key}.npz"

    def write(partial: Path) -> None:
        with partial.open("wb") as file:
            np.savez(file, **make())  # type: ignore[arg-type]

    _once(path, write)
    with np.load(path, allow_pickle=False) as kept:
        return {name: kept[name] for name in kept.files}


def _once(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` make the file unless it is there; of several processes one does, and nobody sees half of it."""
    with locked(path.with_suffix(".lock")):
        if path.exists():
            return
        partial = path.with_suffix(".partial")
        try:
            write(partial)
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)


def _workplace(root: Path) -> Path:
    """Where decoded pictures are kept: with the data, or in the user's own cache when that is read-only."""
    if root.exists() and not os.access(root, os.W_OK):
        root = default_folder()
    return root / HIDDEN / "decoded"


def _fill(target: np.ndarray, rows: Iterable[np.ndarray], what: str) -> np.ndarray:
    filled = 0
    with bar(f"reading {what}", len(target)) as advance:
        for row in rows:
            target[filled] = row
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
