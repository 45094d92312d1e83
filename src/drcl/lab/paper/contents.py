"""`Paper`: the content of ``paper.toml`` and ``claims.toml``, checked and typed."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any, Literal

from drcl.lab.common.fields import nearest

BUDGETS = ("smoke", "small", "paper")
VERDICTS = ("holds", "weaker", "fails", "not testable here", "not run")
_STREAM = ("tasks", "builder", "scenario")  # options that make another stream of the same data
Budget = Literal["smoke", "small", "paper"]
Options = Mapping[str, Any]


@dataclass(frozen=True)
class Data:
    """One benchmark of the paper, and what replaces it at a smaller budget."""

    name: str
    shape: tuple[int, int, int]
    images: int | None = None  # training images per task; None if a task is counted in steps
    small: Options = field(default_factory=dict)
    smoke: Options = field(default_factory=dict)

    def at(self, budget: str) -> tuple[str, dict[str, Any]]:
        """The benchmark to run and its options; if the name is not its own, it is a stand-in."""
        options = dict(getattr(self, budget)) if budget != "paper" else {}
        return str(options.pop("name", self.name)), options

    def told_apart(self, budget: str) -> dict[str, Any]:
        """The options that distinguish its stand-in's runs from another data set's; empty without a stand-in."""
        place, options = self.at(budget)
        return {} if place == self.name else {key: options[key] for key in _STREAM if key in options}


@dataclass(frozen=True)
class Row:
    """A method of the paper, or one of ours that is compared with them."""

    name: str
    title: str
    method: str
    about: str = ""
    options: Options = field(default_factory=dict)
    small: Options = field(default_factory=dict)
    smoke: Options = field(default_factory=dict)
    paper: Options = field(default_factory=dict)
    match: Options = field(default_factory=dict)
    tune: tuple[float, float] | None = None
    cost: float = 1.0


@dataclass(frozen=True)
class Experiment:
    """Rows x benchmarks x seeds."""

    name: str
    about: str
    benchmarks: tuple[str, ...]
    rows: tuple[str, ...]
    seeds: Mapping[str, int]
    options: Options = field(default_factory=dict)
    small: Options = field(default_factory=dict)
    smoke: Options = field(default_factory=dict)
    paper: Options = field(default_factory=dict)
    row: Mapping[str, Options] = field(default_factory=dict)
    match: Options = field(default_factory=dict)
    tune: int = 0  # trials for the strength of each row that has one
    strengths: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # what they found, by budget and row
    like: Mapping[str, str] = field(default_factory=dict)  # benchmark -> the experiment whose runs serve here too


@dataclass(frozen=True)
class Column:
    """One data set of a table."""

    title: str
    group: str
    benchmark: str


@dataclass(frozen=True)
class Printed:
    """A number from the paper; the deviation is None if the paper does not print it."""

    mean: float
    deviation: float | None = None


@dataclass(frozen=True)
class Table:
    """A table of the paper: columns, rows and the numbers it prints."""

    name: str
    title: str
    experiment: str
    metric: str
    columns: tuple[Column, ...]
    printed: Mapping[str, tuple[Printed, ...]]
    averages: Mapping[str, tuple[float, ...]]
    digits: int = 1
    signed: bool = False

    @property
    def groups(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(column.group for column in self.columns))


@dataclass(frozen=True)
class Claim:
    """One claim of the paper and the rules that judge it."""

    name: str
    says: str
    where: str
    rules: tuple[Mapping[str, Any], ...]
    experiment: str = ""  # the runs it needs; empty if a test or a study settles it
    far: str = ""  # how far our setting is from the paper's


@dataclass(frozen=True)
class Paper:
    """Everything in both files."""

    title: str
    authors: str
    budgets: Mapping[str, str]
    data: Mapping[str, Data]
    rows: Mapping[str, Row]
    experiments: Mapping[str, Experiment]
    tables: Mapping[str, Table]
    figures: Mapping[str, str]
    ablations: Mapping[str, str]
    claims: Mapping[str, Claim]

    @property
    def items(self) -> dict[str, str]:
        """The names that can be run, with the experiment of each."""
        tables = {name: table.experiment for name, table in self.tables.items()}
        return tables | {name: name for name in (*self.figures, *self.ablations)}

    def experiment_of(self, item: str) -> Experiment:
        """The experiment of a table, figure or ablation; the error for an unknown name suggests the nearest one."""
        if item not in self.items:
            raise ValueError(f"{item!r} is not a table, figure or ablation of the paper: {nearest(item, self.items)}")
        return self.experiments[self.items[item]]

    def on(self, experiment: Experiment, benchmark: str) -> Experiment:
        """The experiment whose settings hold on a benchmark: itself, or the one whose runs it shares there."""
        return self.experiments[experiment.like[benchmark]] if benchmark in experiment.like else experiment

    def commands(self, claim: Claim, budget: str = "small") -> str:
        """The command that makes the runs for a claim."""
        item = next((item for item, name in self.items.items() if name == claim.experiment), "")
        return f"drcl paper run {item} --budget {budget}" if item else ""


@cache
def paper() -> Paper:
    """Read both files, once."""
    return _made(_read("paper.toml"), _read("claims.toml"))


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads(resources.files("drcl.lab.paper").joinpath(name).read_text(encoding="utf-8"))


def _made(content: Mapping[str, Any], claims: Mapping[str, Any]) -> Paper:
    return Paper(
        title=content["title"],
        authors=content["authors"],
        budgets={name: table["about"] for name, table in content["budget"].items()},
        data={name: _data(name, table) for name, table in content["benchmark"].items()},
        rows={name: _row(name, table) for name, table in content["row"].items()},
        experiments={name: _experiment(name, table) for name, table in content["experiment"].items()},
        tables={name: _table(name, table) for name, table in content["table"].items()},
        figures={name: table["says"] for name, table in content["figure"].items()},
        ablations={name: table["says"] for name, table in content["ablation"].items()},
        claims={name: _claim(name, table) for name, table in claims["claim"].items()},
    )


def _data(name: str, table: Mapping[str, Any]) -> Data:
    channels, height, width = table["shape"]
    return Data(name, **{**table, "shape": (channels, height, width)})


def _row(name: str, table: Mapping[str, Any]) -> Row:
    given = dict(table)
    if "tune" in given:
        low, high = given["tune"]
        given["tune"] = (float(low), float(high))
    return Row(name, **given)


def _experiment(name: str, table: Mapping[str, Any]) -> Experiment:
    given = dict(table) | {key: tuple(table[key]) for key in ("benchmarks", "rows")}
    return Experiment(name, **given)


def _table(name: str, table: Mapping[str, Any]) -> Table:
    given = dict(table)
    columns = tuple(Column(**column) for column in given.pop("column"))
    printed = {row: tuple(_printed(value) for value in values) for row, values in given.pop("printed").items()}
    averages = {row: tuple(values) for row, values in given.pop("averages").items()}
    return Table(name, columns=columns, printed=printed, averages=averages, **given)


def _printed(value: float | list[float]) -> Printed:
    return Printed(*map(float, value)) if isinstance(value, list) else Printed(float(value))


def _claim(name: str, table: Mapping[str, Any]) -> Claim:
    given = dict(table)
    return Claim(name, rules=tuple(given.pop("rule")), **given)
