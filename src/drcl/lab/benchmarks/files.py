"""Benchmarks in the user's own file: TOML tables with the keys of ``benchmarks.toml``, one table per benchmark.

    [my-images]
    about = "my images, two classes per task"
    data = "npz"
    options = { path = "images.npz" }
    ...

``drcl run mine.toml`` runs it. The laboratory treats such a file as a plugin: a run records its path, and another
machine gets a copy.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from drcl.lab.benchmarks.benchmark import Benchmark
from drcl.lab.benchmarks.registry import BENCHMARKS, get
from drcl.lab.common import plugins
from drcl.lab.common.fields import convert, hints, nearest
from drcl.lab.common.plugins import PluginError
from drcl.lab.data.loading import check_options

ENDING = ".toml"
_KEYS = [entry for entry in fields(Benchmark) if entry.name != "name"]
_NEEDED = [entry.name for entry in _KEYS if entry.default is MISSING and entry.default_factory is MISSING]


def is_file(name: str) -> bool:
    """Whether a benchmark is named by a file: ``mine.toml``, or ``mine.toml:name`` for one of several in it."""
    return name.partition(":")[0].endswith(ENDING)


def load(name: str, beside: Path | None = None) -> tuple[list[str], str]:
    """The benchmarks that ``mine.toml`` or ``mine.toml:name`` means, and the plugin that a config keeps for them."""
    file, _, wanted = name.partition(":")
    if ":" in name and not wanted:
        raise ValueError(f"{name}: write the name of a benchmark after the colon, or leave out the colon")
    plugin = plugins.load(file, beside)
    found = BENCHMARKS.of(plugin)
    if wanted and wanted not in found:
        raise ValueError(f"{file} has no benchmark {wanted!r}: {nearest(wanted, found)}")
    return [wanted] if wanted else found, plugin


def load_one(name: str) -> tuple[str, str]:
    """The one benchmark that ``mine.toml`` holds, or the one that ``mine.toml:name`` names, and its plugin."""
    found, plugin = load(name)
    if len(found) > 1:
        raise ValueError(f"{name} holds several benchmarks: {', '.join(found)}; choose one: {name}:{found[0]}")
    return found[0], plugin


def _read(path: Path, content: bytes) -> None:
    """Register every table of a file. Errors name the table and the key; the caller adds the name of the file."""
    try:
        tables = tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as wrong:
        raise PluginError(f"not valid TOML: {wrong}") from None
    except RecursionError:
        raise PluginError("its tables are nested too deeply") from None
    if not tables:
        raise PluginError("it holds no benchmark: write a table such as [my-benchmark]")
    for name, table in tables.items():
        if not isinstance(table, Mapping):
            raise PluginError(f"{name} is outside of a table: write a line [my-benchmark] above it")
        BENCHMARKS.register(name, _settings(name, table, path), str(path))
        try:
            made = get(name)
            for each, options in made.options_of_data().items():
                check_options(each, options)
        except (ValueError, TypeError) as wrong:  # errors of data are ValueErrors too
            raise PluginError(f"[{name}]: {wrong}") from None


def _settings(name: str, table: Mapping[str, Any], path: Path) -> dict[str, Any]:
    known = {entry.name for entry in _KEYS}
    for key in table:
        if key not in known:
            raise PluginError(f"[{name}]: {key!r} is not a setting of a benchmark: {nearest(key, known)}")
    missing = [key for key in _NEEDED if key not in table]
    if missing:
        raise PluginError(f"[{name}] lacks {', '.join(missing)}; an example: drcl list benchmarks digits-split")
    kinds = hints(Benchmark) | {"data": str | list[str], "builder": str}
    settings = {}
    for key, value in table.items():
        try:
            settings[key] = convert(key, value, kinds[key])
        except ValueError as wrong:
            raise PluginError(f"[{name}]: {wrong}") from None
    where = settings.get("options", {}).get("path")
    if isinstance(where, str) and not Path(where).exists() and (path.parent / where).exists():
        # Relative to the current folder, otherwise relative to the file.
        settings["options"] = {**settings["options"], "path": str(path.parent / where)}
    return settings


plugins.READERS[ENDING] = _read
