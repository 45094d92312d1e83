"""The list of known data sets. Each file in ``sets`` registers its own with ``@data_set``, and so do plugins."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from drcl.lab.common.fields import nearest
from drcl.lab.common.plugins import PluginError
from drcl.lab.common.registry import Registry
from drcl.lab.data import sets
from drcl.lab.data.base import DataSet
from drcl.lab.data.errors import DataError
from drcl.lab.data.guard import short
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
    decodes: bool = False  # reading decodes many pictures, so a check does not do it
    refused: Mapping[str, str] = field(default_factory=dict)  # a file or folder name, and why it is not read
    wanted: str = ""  # which file, and where to get it, completing "<name> ..." in one sentence
    hashes: Mapping[str, str] = field(default_factory=dict)  # SHA-256 of the unpacked files
    counts: Mapping[str, int] = field(default_factory=dict)  # official number of images per split
    embedded: bool = False  # comes with an installed package
    own: bool = False  # the user's data, given as a path or an object


_FACTS = frozenset(field.name for field in fields(Entry)) - {"name", "about", "read"}
_in_our_files: dict[str, Entry] = {}


def _ours() -> dict[str, Entry]:
    for module in pkgutil.iter_modules(sets.__path__):
        importlib.import_module(f"{sets.__name__}.{module.name}")
    return _in_our_files


ENTRIES: Registry[Entry] = Registry("data set", _ours, "drcl.data")


def data_set(name: str, about: str, **facts: Any) -> Callable[[Reader], Reader]:
    """Register the decorated function ``read(root, **options) -> DataSet`` as the reader of data set ``name``.

    `root` is the data folder; the other arguments are the set's options. `facts` are the fields of `Entry`: what the
    list of data sets shows, where to fetch the set and what to check. They are optional for a plugin's set without
    files.
    """

    def register(read: Reader) -> Reader:
        for key in facts:
            if key not in _FACTS:
                raise PluginError(f"data set {name!r}: {key!r} is not a fact of a data set: {nearest(key, _FACTS)}")
        if read.__module__.startswith(f"{sets.__name__}."):
            if name in _in_our_files:
                raise RuntimeError(f"two data sets are called {name!r}; rename the one in {read.__module__}")
            _in_our_files[name] = Entry(name=name, about=about, read=read, **facts)
        else:
            own = not facts.keys() & {"present", "sources", "archives", "embedded"}
            made = Entry(name=name, about=about, read=read, **{"own": own, **facts})
            ENTRIES.register(name, made, read.__module__)
        return read

    return register


def entries() -> dict[str, Entry]:
    """Every registered data set by name, in alphabetical order."""
    return dict(sorted(ENTRIES.items()))


def entry(name: str) -> Entry:
    """The registered data set of this name, or an error that lists the names."""
    known = entries()
    if name in known:
        return known[name]
    near = get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise DataError(f"there is no data set {short(name)!r}{hint} Known: {', '.join(known)}.")
