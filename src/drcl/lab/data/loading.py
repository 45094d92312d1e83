"""``load``: from a name to a data set, whatever form its files have in the data folder."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from drcl.lab.data.base import DataSet
from drcl.lab.data.errors import DataError, MissingData
from drcl.lab.data.folder import data_folder
from drcl.lab.data.formats.arrays import read_npz
from drcl.lab.data.registry import Entry, entries, entry


def names() -> list[str]:
    """The names ``load`` knows, in alphabetical order."""
    return list(entries())


def load(name: str, root: str | Path | None = None, **options: Any) -> DataSet:
    """Read data set ``name`` from the data folder (``root``, else ``DRCL_DATA``, else the user's cache).

    A name that is not in ``names()`` is looked up as ``NAME.npz`` in the data folder. Options are the
    reader's own, such as ``split="letters"`` for emnist or ``labels="coarse"`` for cifar100.
    """
    folder = data_folder(root)
    if name not in entries() and (folder / f"{name}.npz").is_file():
        _check(name, read_npz, options, skip=("path", "name"))
        return read_npz(folder / f"{name}.npz", name, **options)
    known = entry(name)
    _check(name, known.read, options)
    if not (known.own or known.embedded or known.present(folder)):
        stand_in = _stand_in(known, folder, options)
        if stand_in is not None:
            return stand_in
        raise MissingData(missing(known, folder))
    return known.read(folder, **options)


def missing(known: Entry, root: Path) -> str:
    """One sentence on how to get a data set that is not there."""
    for file, why in known.refused.items():
        for path in (root / file, root / known.name / file):
            if path.exists():
                return f"{path} is not read: {why}."
    manual = f"{known.wanted.rstrip('.')}, and put it into {root / known.name}" if known.wanted else ""
    if known.sources:
        by_hand = f", or by hand: {manual}" if manual else ""
        return f"{known.name} is not in {root}: run `drcl data fetch {known.name}`{by_hand}."
    return f"{known.name} is not in {root} and cannot be fetched by a program: {manual}."


def _check(name: str, read: Any, options: dict[str, Any], skip: tuple[str, ...] = ("root",)) -> None:
    allowed = [option for option in inspect.signature(read).parameters if option not in skip]
    for option in options:
        if option not in allowed:
            raise DataError(f"{name} has no option {option!r}; it has {', '.join(allowed) or 'none'}.")


def _stand_in(known: Entry, root: Path, options: dict[str, Any]) -> DataSet | None:
    """The set already as arrays, in NAME.npz or, for a size, NAME32.npz or NAME_32.npz."""
    parameters = inspect.signature(known.read).parameters
    size = options.get("size", parameters["size"].default if "size" in parameters else None)
    stems = [known.name] if size is None else [f"{known.name}{size}", f"{known.name}_{size}", known.name]
    for stem in stems:
        path = root / f"{stem}.npz"
        if not path.is_file():
            continue
        for option, value in options.items():
            if option not in ("size", "budget") and value != parameters[option].default:
                raise DataError(
                    f"{path} has arrays only, so {option}={value!r} needs {known.name}'s official files."
                )
        found = read_npz(path, known.name)
        if size is None or found.train.images.shape[2:] == (size, size):
            return found
    return None
