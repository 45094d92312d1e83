"""Putting files into the data folder in one move: a half-written data set is never seen under its name."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from drcl.lab.data.errors import DataError
from drcl.lab.data.lock import locked
from drcl.lab.data.unpack import is_archive, unpack

HIDDEN = ".drcl"  # for locks, unfinished work and decoded images, inside the data folder
MARK = ".moving"  # in a data set's folder while files are moved into it


@contextmanager
def staging(root: Path, name: str) -> Iterator[Path]:
    """A new folder on the same disk as ``root``, removed at the end. Enter it while holding ``only_one``."""
    base = root / HIDDEN / "staging"
    base.mkdir(parents=True, exist_ok=True)
    for left in base.glob(f"{name}-*"):  # left by a process that was killed, because this one holds the lock
        shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=base))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def only_one(root: Path, name: str) -> AbstractContextManager[None]:
    """The lock under which data set ``name`` is written."""
    return locked(root / HIDDEN / "locks" / f"{name}.lock")


def move_in(staged: Path, target: Path) -> None:
    """Move ``staged`` to ``target`` by renaming; existing files that are not replaced stay.

    If the folder already exists, files are moved one by one, and a mark in it says so until all are there; see
    ``settled``.
    """
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        os.rename(staged, target)
        return
    mark = target / MARK
    mark.touch()
    for path in sorted(staged.rglob("*")):
        output = target / path.relative_to(staged)
        if path.is_file():
            output.parent.mkdir(parents=True, exist_ok=True)
            os.replace(path, output)
    mark.unlink()


def settled(root: Path, name: str) -> bool:
    """Whether no move into the folder of data set ``name`` was interrupted; waits for a move that is in progress."""
    if cut_off(root, name) and os.access(root, os.W_OK):
        with only_one(root, name):
            pass
    return not cut_off(root, name)


def cut_off(root: Path, name: str) -> bool:
    """Whether a move into the folder of data set ``name`` has begun but not ended."""
    return (root / name / MARK).exists()


def unpack_into(archive: Path, folder: Path) -> None:
    """Unpack ``archive``, and tar files directly inside it each into a folder of its name (ImageNet's)."""
    if not is_archive(archive):
        raise DataError(f"{archive} is neither a tar nor a zip file, whatever its name says; get it again.")
    if not unpack(archive, folder):
        raise DataError(f"{archive} holds no files; get it again.")
    for inner in sorted(folder.glob("*.tar")):
        unpack(inner, folder / inner.stem)
        inner.unlink()


def unpack_found(root: Path, name: str, archives: Mapping[str, str], present: Callable[[Path], bool]) -> None:
    """Unpack a set's official archives (name -> folder) that lie in the data folder or the set's own."""
    if present(root) and settled(root, name):
        return
    found = {}
    for archive, folder in archives.items():
        for path in (root / name / archive, root / archive):
            if path.is_file():
                found[path] = folder
                break
    if not found:
        return
    if not os.access(root, os.W_OK):
        raise DataError(
            f"{root} cannot be written to, so {next(iter(found)).name} cannot be unpacked there; "
            f"unpack it yourself into {root / name}."
        )
    with only_one(root, name):
        if present(root) and not cut_off(root, name):  # another process was faster
            return
        with staging(root, name) as stage:
            for path, folder in found.items():
                unpack_into(path, stage / name / folder)
            move_in(stage / name, root / name)
