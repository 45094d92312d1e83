"""``drcl list``: benchmarks, methods, networks and data sets as tables."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import fields
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from drcl.lab import benchmarks, methods
from drcl.lab.cli.arguments import Plugins, load, own_file
from drcl.lab.cli.data import show as show_data
from drcl.lab.cli.terminal import USAGE, console, fail
from drcl.lab.common import fields as options
from drcl.lab.common.registry import Registry
from drcl.lab.networks import TRUNKS


class Topic(StrEnum):
    benchmarks = "benchmarks"
    methods = "methods"
    networks = "networks"
    data = "data"


def list_(
    topic: Annotated[Topic, typer.Argument(help="What to list.")],
    name: Annotated[
        str | None, typer.Argument(help="Show only this one, in full; your own benchmark by its file, mine.toml.")
    ] = None,
    plugin: Plugins = None,
) -> None:
    """List benchmarks, methods with their hyperparameters, networks, or data sets."""
    own = load(plugin)
    if topic is Topic.benchmarks:
        name, _ = own_file(name, own)
    if topic is Topic.data:
        show_data(name)
        return
    made = {Topic.benchmarks: _benchmarks, Topic.methods: _methods, Topic.networks: _networks}[topic](name)
    console().print(made)


def _plain(*columns: str, right: tuple[str, ...] = ()) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left")
    return table


def _chosen(name: str | None, known: tuple[str, ...], what: str) -> tuple[str, ...]:
    if name is None:
        return known
    if name not in known:
        fail(f"there is no {what} {name!r}: {options.nearest(name, known)}", USAGE)
    return (name,)


def _from(registry: Registry[Any], name: str) -> tuple[str, str]:
    """Which plugin registered it, if it is not part of drcl."""
    return (f"  from {registry.whose(name)}" if registry.whose(name) else "", "magenta")


# ---- benchmarks


def _benchmarks(name: str | None) -> RenderableType:
    if name is not None:
        return _benchmark(_chosen(name, benchmarks.names(), "benchmark")[0])
    table = _plain("name", "what", "tasks", "scenario", "network", "trained", right=("tasks",))
    table.columns[0].no_wrap = True
    for row in benchmarks.table():
        table.add_row(
            Text(row["name"], style="bold"),
            Text.assemble(row["about"], _from(benchmarks.BENCHMARKS, row["name"])),
            str(row["tasks"]),
            row["scenario"],
            row["network"],
            row["length"].replace(" epochs", " epoch") if row["length"].startswith("1 ") else row["length"],
        )
    hint = Text.assemble(("drcl list benchmarks NAME", "bold"), (" shows all settings of one", "dim"))
    return Group(table, hint)


def _benchmark(name: str) -> RenderableType:
    one = benchmarks.get(name)
    table = _plain("setting", "value")
    for entry in fields(one):
        value = getattr(one, entry.name)
        if entry.name not in ("name", "about", "reading") and value not in (None, {}, ()):
            table.add_row(Text(entry.name, style="bold"), Text(_value(value)))
    parts: list[RenderableType] = [Text.assemble((name, "bold"), f"  {one.about}"), table]
    if one.reading:
        parts.append(Padding(Text(f"Our reading of the paper: {one.reading}", style="dim"), (0, 1)))
    return Group(*parts)


# ---- methods


def _methods(name: str | None) -> RenderableType:
    parts: list[RenderableType] = []
    for each in _chosen(name, tuple(methods.names()), "method"):
        parts.append(Text.assemble((each, "bold cyan"), "  ", methods.get(each).about, _from(methods.METHODS, each)))
        if name is not None:
            parts.append(Padding(Text(_told(methods.get(each))), (1, 0, 0, 2)))
        rows = options.table(methods.get(each))
        if rows:
            table = _plain("key", "default", "what it does")
            table.show_header = not parts[:-1]
            for row in rows:
                default = Text(_value(row["default"]), style="green")
                table.add_row(Text(row["name"], style="bold"), default, Text(row["help"]))
            parts.append(Padding(table, (0, 0, 0, 2)))
        knob = methods.get(each).tunes
        if name is not None and knob is not None:
            tuned = f"drcl tune chooses {knob.name}, at first from {knob.low:g} to {knob.high:g}"
            parts.append(Text(f"  {tuned}", style="dim"))
        parts.append(Text())
    shown = _chosen(name, tuple(methods.names()), "method")
    return Group(*parts, _abilities({each: methods.get(each).abilities.words() for each in shown}))


def _abilities(rows: Mapping[str, Mapping[str, str]]) -> RenderableType:
    """What each method needs and supports; anything unsupported is refused when a run begins."""
    table = _plain("method", *next(iter(rows.values())), right=("passes",))
    table.padding = (0, 1, 0, 0)
    for column in table.columns:
        column.no_wrap = " " not in str(column.header)
    for name, cells in rows.items():
        table.add_row(Text(name, style="bold"), *cells.values())
    legend = (
        "task ids: the method must be told the task when it answers. task ends: it does something when a task ends. "
        "old data: examples of earlier tasks that it trains on again. passes: how often it trains through a task. "
        "norms: norm layers that it supports; unshared means layers whose statistics no other task overwrites. "
        "residual: it supports networks that are not a plain chain of layers. optimizer: those that it supports; own "
        "means that it makes its own steps. decay: it supports weight decay."
    )
    return Group(table, Padding(Text(legend, style="dim"), (0, 1)))


def _told(method: type) -> str:
    """The docstrings of its file and its class, in paragraphs as wide as the terminal; equations stay unchanged."""
    said = [inspect.getdoc(each) for each in (inspect.getmodule(method), method)]
    paragraphs = [part for text in said if text for part in text.split("\n\n")]
    return "\n\n".join(part if "\n " in f"\n{part}" else part.replace("\n", " ") for part in paragraphs)


# ---- networks


def _networks(name: str | None) -> RenderableType:
    table = _plain("kind", "what", "arguments")
    for each in _chosen(name, tuple(TRUNKS), "network"):
        about = (inspect.getdoc(TRUNKS[each]) or "").split("\n\n")[0].replace("\n", " ")
        given = [
            f"{key}={_value(p.default)}"
            for key, p in inspect.signature(TRUNKS[each]).parameters.items()
            if p.default is not inspect.Parameter.empty and key != "tasks"
        ]
        table.add_row(
            Text(each, style="bold"), Text.assemble(about.replace("`", ""), _from(TRUNKS, each)), Text(", ".join(given))
        )
    hint = Text.assemble(
        ("drcl run BENCHMARK -o model.kind=cnn", "bold"), (" trains a different network on the benchmark", "dim")
    )
    return Group(table, hint)


def _value(value: Any) -> str:
    """A setting as one would write it after ``-o key=``."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={_value(each)}" for key, each in value.items())
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    return "none" if value is None else str(value)
