"""``load``: from a name to a data set, whatever form its files have in the data folder."""

from __future__ import annotations

import inspect
import types
import typing
from dataclasses import replace
from pathlib import Path
from typing import Any

from drcl.lab.data.base import DataSet
from drcl.lab.data.decoding import check_size
from drcl.lab.data.errors import DataError, MissingData
from drcl.lab.data.files import there, whole_number
from drcl.lab.data.folder import data_folder
from drcl.lab.data.formats.arrays import read_npz
from drcl.lab.data.images import fingerprint, shrunk
from drcl.lab.data.place import settled, unpack_found
from drcl.lab.data.registry import Entry, entries, entry
from drcl.lab.data.sound import sound

KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", Path: "a path", None: "none"}


def names() -> list[str]:
    """The names ``load`` knows, in alphabetical order."""
    return list(entries())


def load(name: str, /, root: str | Path | None = None, **options: Any) -> DataSet:
    """Read data set ``name`` from the data folder (``root``, else ``DRCL_DATA``, else the user's cache).

    A name that is not in ``names()`` is looked up as ``NAME.npz`` in the data folder. Options are the
    reader's own, such as ``split="letters"`` for emnist or ``labels="coarse"`` for cifar100.
    """
    folder = data_folder(root)
    if not isinstance(name, str):
        raise DataError(f"the data set's name is {name!r}; wanted text, as in `drcl data list`.")
    if name not in entries() and Path(name).name == name and there(folder / f"{name}.npz"):
        check_options(name, options)
        return sound(read_npz(folder / f"{name}.npz", name, **options))
    known = entry(name)
    check_options(name, options)
    if known.own or known.embedded:
        return sound(known.read(folder, **options))
    unpack_found(folder, name, known.archives, known.present)
    if known.present(folder):
        if not settled(folder, name):
            raise DataError(
                f"{folder / name} is not complete: moving files there was interrupted. "
                + (f"Run `drcl data fetch {name}`" if known.sources else "Put its archives there again")
                + f", or remove {folder / name} and put the data there again."
            )
        return sound(known.read(folder, **options))
    stand_in = _stand_in(known, folder, options)
    if stand_in is None:
        raise MissingData(missing(known, folder))
    return sound(stand_in)


def available(known: Entry, root: Path) -> bool:
    """Whether ``load`` with default options would find this set, without unpacking anything."""
    if known.present(root) or _arrays(known, root, None):
        return True
    return bool(known.archives) and all(
        (root / archive).is_file() or (root / known.name / archive).is_file() for archive in known.archives
    )


def missing(known: Entry, root: Path) -> str:
    """One sentence on how to get a data set that is not there."""
    for file, why in known.refused.items():
        for path in (root / file, root / known.name / file):
            if path.exists():
                return f"{path} is not read: {why}."
    by_hand = f"{known.wanted}, and put it into {root / known.name}" if known.wanted else ""
    if known.sources:
        also = f", or by hand: {by_hand}" if by_hand else ""
        return f"{known.name} is not in {root}: run `drcl data fetch {known.name}`{also}."
    return f"{known.name} is not in {root} and cannot be fetched by a program: {by_hand}."


def check_options(name: str, options: dict[str, Any]) -> None:
    """Check that data set ``name`` has these options and needs no others, and that their values have the right type."""
    known = entries()
    if name in known:
        _check(name, known[name].read, options)
    else:
        _check(name, read_npz, options, skip=("path", "name"))


def _check(name: str, read: Any, options: dict[str, Any], skip: tuple[str, ...] = ("root",)) -> None:
    parameters, hints = inspect.signature(read).parameters, _hints(read)
    allowed = [option for option in parameters if option not in skip]
    for option, value in options.items():
        if option not in allowed:
            raise DataError(f"{name} has no option {option!r}; it has {', '.join(allowed) or 'none'}.")
        kinds = _kinds(hints.get(option, Any))
        if kinds and not any(_is(value, kind) for kind in kinds):
            wanted = " or ".join(KINDS[kind] for kind in kinds)
            raise DataError(f"{option}={value!r} does not fit {name}: give {wanted}.")
    for option in allowed:
        if parameters[option].default is inspect.Parameter.empty and option not in options:
            raise DataError(f"{name} needs the option {option!r}.")


def _hints(read: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(read)
    except (NameError, TypeError):  # a plugin's types may be unknown here
        return {}


def _kinds(hint: Any) -> list[Any]:
    """The plain types an option may have, with None for none; empty if anything is allowed."""
    parts = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    kinds = [None if part is types.NoneType else part for part in parts]
    return kinds if all(kind in KINDS for kind in kinds) else []


def _is(value: Any, kind: Any) -> bool:
    if kind is None:
        return value is None
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _stand_in(known: Entry, root: Path, options: dict[str, Any]) -> DataSet | None:
    """The set from a file of arrays, shrunk to the wanted size if its images are larger."""
    parameters = inspect.signature(known.read).parameters
    size = options.get("size", parameters["size"].default) if "size" in parameters else None
    path = _arrays(known, root, size)
    if path is None:
        return None
    for option, value in options.items():
        if option not in ("size", "budget") and value != parameters[option].default:
            raise DataError(f"{option}={value!r} needs {known.name}'s official files, not {path}.")
    data = read_npz(path, known.name)
    check_size(size)
    if size is None or data.train.images.shape[2:] == (size, size):
        return data
    if min(data.train.images.shape[2:]) < size:
        raise MissingData(
            f"{path} has smaller images than size={size}, which needs {known.name}'s official files: "
            f"{known.wanted}, and put it into {root / known.name}."
        )
    key = fingerprint([path], str(size))
    budget = options.get("budget")
    splits = {
        part: replace(split, images=shrunk(split.images, size, root, f"{known.name} {part}", key, budget))
        for part in ("train", "valid", "test")
        if (split := getattr(data, part)) is not None
    }
    return replace(data, **splits)


def _arrays(known: Entry, root: Path, size: int | None) -> Path | None:
    """NAME32.npz or NAME_32.npz for that size, else NAME.npz, else any size there is, the largest first."""
    exact = [root / f"{known.name}{mark}{size}.npz" for mark in ("", "_")] if size is not None else []
    for path in (*exact, root / f"{known.name}.npz"):
        if path.is_file():
            return path
    if "size" not in inspect.signature(known.read).parameters:
        return None  # the digits may be part of another set's name, as in cifar10 and cifar100
    sized = {}
    for path in root.glob(f"{known.name}*.npz"):
        digits = path.stem.removeprefix(known.name).removeprefix("_")
        if (number := whole_number(digits)) is not None:
            sized[number] = path
    return sized[max(sized)] if sized else None
