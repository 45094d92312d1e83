"""Arguments that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from drcl.lab.benchmarks import files
from drcl.lab.cli.terminal import USAGE, fail, told
from drcl.lab.runs.config import loaded

Data = Annotated[Path | None, typer.Option("--data", help="Folder of the data sets, instead of the default one.")]
Options = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        "-o",
        metavar="KEY=VALUE",
        help="Any setting of the benchmark, the method or the training; may be repeated.",
    ),
]
Plugins = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        metavar="FILE.py|MODULE",
        help="Your own code that registers methods, benchmarks, data sets or networks; may be repeated.",
    ),
]


def parsed(pairs: list[str]) -> dict[str, Any]:
    """``key=value`` texts as a table; values stay text here, because only their owners know their types."""
    given = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not sign or not key.strip():
            fail(f"-o {pair}: write key=value, such as -o epochs=5", USAGE)
        given[key.strip()] = value.strip()
    return given


def load(plugins: list[str] | None) -> tuple[str, ...]:
    """Import the plugins of a command line before any name is looked up."""
    with told(USAGE, ValueError, OSError):
        return loaded(plugins or [])


def own_file(benchmark: str | None, plugins: tuple[str, ...]) -> tuple[str | None, tuple[str, ...]]:
    """A benchmark's name and the plugins. If the benchmark is a file of the user, the file is added to the plugins."""
    if benchmark is None or not files.is_file(benchmark):
        return benchmark, plugins
    with told(USAGE, ValueError, OSError):
        name, plugin = files.load_one(benchmark)
    return name, (*plugins, plugin)
