"""The list of known data sets. Each file in ``sets`` registers its own with ``@data_set``."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from drcl.lab.data.base import DataSet
from drcl.lab.data.errors import DataError
from drcl.lab.data.guard import short

if TYPE_CHECKING:
    from drcl.lab.data.sources import Source

Reader = Callable[..., DataSet]


@dataclass(frozen=True)
class Entry:
    """What is known about a data set before any of its files is opened."""

    name: str
    about: str
    read: Reader
    classes: str = ""  # this and the next two as shown in the list
    images: str = ""
    size: str = ""
    present: Callable[[Path], bool] = lambda root: False
    sources: tuple[Source, ...] = ()
    archives: Mapping[str, str] = field(default_factory=dict)  # official archive -> folder it is unpacked into
    decodes: bool = False  # reading means decoding many pictures, so it is not done just to check
    refused: Mapping[str, str] = field(default_factory=dict)  # a file or folder name, and why it is not read
    wanted: str = ""  # which file, and where to get it, completing "<name> ..." in one sentence
    hashes: Mapping[str, str] = field(default_factory=dict)  # SHA-256 of the unpacked files
    counts: Mapping[str, int] = field(default_factory=dict)  # official number of images a split
    embedded: bool = False  # comes with an installed package
    own: bool = False  # the user's data, given as a path or an object


_entries: dict[str, Entry] = {}


def data_set(name: str, about: str, **facts: object) -> Callable[[Reader], Reader]:
    """Register the decorated reader ``read(root, **options)`` as data set ``name``."""

    def register(read: Reader) -> Reader:
        if name in _entries and _entries[name].read.__module__ != read.__module__:
            raise DataError(
                f"data set {name!r} is registered twice: {_entries[name].read.__module__}, {read.__module__}"
            )
        _entries[name] = Entry(name=name, about=about, read=read, **facts)  # type: ignore[arg-type]
        return read

    return register


@cache
def _discover() -> None:
    from drcl.lab.data import sets

    for module in pkgutil.iter_modules(sets.__path__):
        importlib.import_module(f"{sets.__name__}.{module.name}")


def entries() -> dict[str, Entry]:
    """Every registered data set by name, in alphabetical order."""
    _discover()
    return dict(sorted(_entries.items()))


def entry(name: str) -> Entry:
    """The registered data set of this name, or an error that lists the names."""
    known = entries()
    if name in known:
        return known[name]
    near = get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise DataError(f"there is no data set {short(name)!r}{hint} Known: {', '.join(known)}.")
