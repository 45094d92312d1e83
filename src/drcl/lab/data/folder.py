"""Where data are stored: ``DRCL_DATA``, or the user's cache folder; and how a file is found inside it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import platformdirs

from drcl.lab.data.errors import DataError, MissingData
from drcl.lab.data.guard import short

VARIABLE = "DRCL_DATA"


def data_folder(root: str | Path | None = None) -> Path:
    """``root`` if given, else the folder named by ``DRCL_DATA``, else ``data`` in the user's cache folder."""
    if root is not None:
        return user_path(root, "root").absolute()
    return user_path(os.environ.get(VARIABLE) or default_folder(), VARIABLE).absolute()


def user_path(given: str | Path, option: str) -> Path:
    """A path as a user gives it, with ``~`` for the home folder; ``option`` names it in an error."""
    if not isinstance(given, str | os.PathLike) or not str(given) or "\0" in str(given):
        raise DataError(f"{option}={given!r} is not a path; give the name of a folder or file.")
    try:
        path = Path(given).expanduser()
        path.exists()
    except (OSError, RuntimeError) as refused:
        why = getattr(refused, "strerror", None) or "there is no such user"
        raise DataError(f"{option}={short(str(given))!r} is not a path that can be used ({why}).") from refused
    return path


def default_folder() -> Path:
    """``data`` in the user's cache folder."""
    return Path(platformdirs.user_cache_dir("drcl", appauthor=False)) / "data"


def places(root: Path, name: str, *layouts: str, loose: bool = True) -> list[Path]:
    """Folders that may hold data set ``name``, best first: its own folder, then official folder names.

    ``loose`` adds the data folder itself; sets whose file names are not theirs alone (MNIST's) leave it out.
    """
    own = root / name
    found = [own, *(own / layout for layout in layouts), *(root / layout for layout in layouts)]
    if loose:
        found.append(root)
    return [place for place in found if place.is_dir()]


def find(folders: Iterable[Path], *names: str) -> Path | None:
    """The first of ``names``, plain or with ``.gz``, in the first folder that has it."""
    for folder in folders:
        for name in names:
            for candidate in (folder / name, folder / f"{name}.gz"):
                if candidate.is_file():
                    return candidate
    return None


def need(folders: Iterable[Path], what: str, *names: str) -> Path:
    """Like ``find``, but a missing file is an error that names it and the folders looked in."""
    looked = list(folders)
    path = find(looked, *names)
    if path is None:
        where = ", ".join(str(folder) for folder in looked) or "the data folder"
        raise MissingData(f"{what} lacks the file {' or '.join(names)} (or its .gz); looked in {where}.")
    return path
