"""From runs to rows: one row per method, mean and standard deviation over seeds, cost beside accuracy.

``formats`` decides how a table looks. A run that is unfinished, failed, damaged or repeated is named in a note under
the table and never included in an average.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from drcl.lab.common.words import clean
from drcl.lab.report.glossary import WORDS
from drcl.lab.report.groups import Group, group
from drcl.lab.runs.read import Run

BASELINE = "sgd"  # its time is the unit of cost
REFERENCES = frozenset({"joint"})  # bounds, not competitors: they may keep all data, so they are never marked as best


@dataclass(frozen=True)
class Column:
    """One measure in a table: its name, its scale for reading, and whether high or low is good."""

    key: str
    title: str
    unit: str = ""
    scale: float = 1.0
    digits: int = 1
    signed: bool = False
    better: Literal["high", "low", ""] = ""

    @property
    def about(self) -> str:
        """What it measures, for a reader who points at its name."""
        return WORDS.get(self.key, "")


COLUMNS = (
    Column("average_accuracy", "average accuracy", "%", 100, better="high"),
    Column("backward_transfer", "backward transfer", "points", 100, signed=True, better="high"),
    Column("forgetting", "forgetting", "points", 100, better="low"),
    Column("incremental_accuracy", "A_inc", "%", 100, better="high"),
    Column("unmoved", "weights unmoved", "%", 100),
    Column("learning_seconds", "time", "s"),
    Column("relative_time", "time", "× SGD", digits=2),
    Column("gradient_evaluations", "gradient evaluations", digits=0),
    Column("state_bytes", "state", digits=0),
)
HELD = Column("directions_held", "directions held", "%", 100)  # instead of unmoved weights, see `shown`
_MEASURED = (*COLUMNS, HELD)


@dataclass(frozen=True)
class Statistic:
    """Mean and sample standard deviation over ``n`` seeds; the deviation of one value is not known (NaN)."""

    mean: float
    deviation: float
    n: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Statistic:
        known = [value for value in values if not math.isnan(value)]
        if not known:
            return cls(math.nan, math.nan, 0)
        spread = statistics.stdev(known) if len(known) > 1 else math.nan
        return cls(statistics.fmean(known), spread, len(known))

    def scaled(self, factor: float) -> Statistic:
        return Statistic(self.mean * factor, self.deviation * factor, self.n)


@dataclass(frozen=True)
class Row:
    """One method on one benchmark."""

    benchmark: str
    method: str
    label: str
    seeds: tuple[int, ...]
    values: dict[str, Statistic]
    best: frozenset[str]  # keys of the columns in which no other method of the benchmark is better
    notes: tuple[str, ...]
    group: Group | None = None  # None for runs whose settings are unknown

    @property
    def reference(self) -> bool:
        return self.method in REFERENCES


def rows(runs: Iterable[Run | Group]) -> list[Row]:
    """One row for each benchmark and method: the baseline first, then up to the best, references last."""
    runs = list(runs)
    found: list[Row] = []
    groups = group(runs)
    for benchmark in dict.fromkeys(g.benchmark for g in groups):
        here = [g for g in groups if g.benchmark == benchmark]
        unit = _baseline_seconds(here)
        drafts = sorted(((g, _values(g, unit)) for g in here), key=_order)
        winners = _winners(drafts)
        for g, values in drafts:
            seeds = tuple(run.seed for run in g.finished if run.seed is not None)
            best = frozenset(key for key, labels in winners.items() if g.label in labels)
            found.append(Row(benchmark, g.method, g.label, seeds, values, best, _notes(g, values), g))
    unreadable = [run for run in runs if isinstance(run, Run) and not run.readable]
    if unreadable:
        notes = tuple(f"{clean(run.path.name)}: {sentence}" for run in unreadable for sentence in run.problems)
        nothing = {column.key: Statistic.of([]) for column in _MEASURED}
        found.append(Row("unreadable runs", "", "", (), nothing, frozenset(), notes))
    return found


def _order(draft: tuple[Group, dict[str, Statistic]]) -> tuple[int, float, str]:
    g, values = draft
    accuracy = values["average_accuracy"].mean
    rank = 3 if math.isnan(accuracy) else 0 if g.method == BASELINE else 2 if g.method in REFERENCES else 1
    return (rank, accuracy if rank < 3 else 0.0, g.label)


def _baseline_seconds(groups: Sequence[Group]) -> float:
    seconds = [Statistic.of(_each(g, "learning_seconds")) for g in groups if g.method == BASELINE]
    # Two kinds of SGD (such as two learning rates) do not give a single unit.
    return seconds[0].mean if len(seconds) == 1 else math.nan


def _each(g: Group, key: str) -> list[float]:
    return [run.value(key) for run in g.finished]


def _values(g: Group, unit: float) -> dict[str, Statistic]:
    values = {c.key: Statistic.of(_each(g, c.key)) for c in _MEASURED if c.key != "relative_time"}
    relative = [seconds / unit for seconds in _each(g, "learning_seconds")] if unit > 0 else []
    return values | {"relative_time": Statistic.of(relative)}


def _winners(drafts: Sequence[tuple[Group, dict[str, Statistic]]]) -> dict[str, set[str]]:
    """Labels of the best method for each column; none if there is nothing to compare with."""
    contest = [(g.label, values) for g, values in drafts if g.method not in REFERENCES and g.finished]
    winners: dict[str, set[str]] = {}
    for column in COLUMNS:
        means = {label: values[column.key].mean for label, values in contest}
        means = {label: mean for label, mean in means.items() if not math.isnan(mean)}
        if not column.better or len(means) < 2:
            continue
        # Compare rounded numbers: two methods with equal numbers are both best.
        shown = {label: round(mean * column.scale, column.digits) for label, mean in means.items()}
        top = max(shown.values()) if column.better == "high" else min(shown.values())
        winners[column.key] = {label for label, mean in shown.items() if mean == top}
    return winners


def _notes(g: Group, values: dict[str, Statistic]) -> tuple[str, ...]:
    notes = []
    for column in _MEASURED:
        known, seeds = values[column.key].n, len(g.finished)
        if 0 < known < seeds:
            notes.append(f"{g.label}: {column.title} is known only for {known} of {seeds} seeds")
    notes.extend(f"{g.label}: {clean(run.path.name)} {reason} and is not counted" for run, reason in g.left_out)
    for run in g.runs:
        name = clean(run.path.name)
        if not run.finished:
            notes.append(f"{g.label}, seed {run.seed}: {run.status}; not counted ({name})")
        notes.extend(f"{g.label}, seed {run.seed}: {sentence} ({name})" for sentence in run.problems)
    return tuple(notes)


def benchmark_notes(table: Sequence[Row], benchmark: str) -> list[str]:
    """What a reader of one benchmark's table must know before comparing its rows."""
    here = [row for row in table if row.benchmark == benchmark]
    counted = [row for row in here if row.group is not None and row.group.finished]
    notes = []
    by_seeds: dict[tuple[int, ...], list[str]] = {}
    for row in counted:
        by_seeds.setdefault(row.seeds, []).append(row.label)
    if len(by_seeds) > 1:
        parts = [f"{', '.join(labels)} on {seed_text(seeds)}" for seeds, labels in by_seeds.items()]
        notes.append("The methods were not run on the same seeds: " + "; ".join(parts) + ".")
    elif any(len(row.seeds) == 1 for row in counted):
        notes.append("One seed only: the spread is not known, and small differences mean nothing.")
    if len({run.machine for run in _counted(counted)}) > 1:
        notes.append("The runs were made on different machines or with different threads; times do not compare.")
    training = {str(sorted(run.options("training").items())) for run in _counted(counted)}
    if len(training) > 1:
        notes.append("The runs were not all trained with the same settings; see how each was run.")
    if counted and all(math.isnan(row.values["relative_time"].mean) for row in counted):
        notes.append(f"No single finished {BASELINE} run to measure time against.")
    return notes + [note for row in here for note in row.notes]


def _counted(table: Sequence[Row]) -> list[Run]:
    return [run for row in table if row.group is not None for run in row.group.finished]


def shown(row: Row, column: Column) -> Column:
    """What a row shows in a column.

    A method that holds directions moves nearly every single weight, which says nothing about what it holds: it shows
    its share of directions instead, where that was recorded.
    """
    return HELD if column.key == "unmoved" and not math.isnan(row.values[HELD.key].mean) else column


def row_text(row: Row, column: Column, plus_minus: str = " ± ") -> str:
    """The cell of a row as text; a share of directions is marked as such."""
    told = shown(row, column)
    text = cell_text(told, row.values[told.key], plus_minus)
    return text if told is column else f"{text} (directions)"


def seed_text(seeds: Sequence[int]) -> str:
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    return "seeds " + ", ".join(map(str, seeds)) if seeds else "no seed"


# ---- numbers as text


def bytes_text(count: float) -> str:
    if math.isnan(count):
        return "–"
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1000
    raise AssertionError("unreachable")


def count_text(count: float) -> str:
    if math.isnan(count):
        return "–"
    for unit in ("", "k", "M", "G"):
        if abs(count) < 1000 or unit == "G":
            return f"{count:.0f}" if not unit else f"{count:.3g} {unit}"
        count /= 1000
    raise AssertionError("unreachable")


def cell_text(column: Column, value: Statistic, plus_minus: str = " ± ") -> str:
    """A statistic for reading: ``90.2 ± 0.4``. Unknown is a dash, an unknown deviation is left out."""
    if math.isnan(value.mean):
        return "–"
    if column.key == "state_bytes":
        return bytes_text(value.mean)
    if column.key == "gradient_evaluations":
        return count_text(value.mean)
    shown = value.scaled(column.scale)
    mean = f"{shown.mean:+.{column.digits}f}" if column.signed else f"{shown.mean:.{column.digits}f}"
    if column.signed and float(mean) == 0:
        mean = mean.lstrip("+-")
    mean = mean.replace("-", "−")
    return mean if math.isnan(value.deviation) else f"{mean}{plus_minus}{shown.deviation:.{column.digits}f}"
