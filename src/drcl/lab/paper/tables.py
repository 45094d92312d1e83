"""A table of the paper filled with our runs: our numbers, the printed ones, averages, and the best of each column."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from drcl.lab.paper.contents import Paper, Printed, Table
from drcl.lab.paper.matching import Found, find, scale
from drcl.lab.report.table import REFERENCES, Statistic
from drcl.lab.runs.read import Run

NOTHING = Statistic(math.nan, math.nan, 0)


@dataclass(frozen=True)
class Cell:
    """Our number, the paper's, and whether ours is the best of its column."""

    ours: Statistic = NOTHING
    paper: Printed | None = None
    best: bool = False


@dataclass(frozen=True)
class Line:
    """One method."""

    row: str
    title: str
    cells: tuple[Cell, ...]  # data sets and averages, in the order of the heads
    reference: bool  # a bound, not a competitor
    printed: bool  # whether the paper prints it in this table


@dataclass(frozen=True)
class Head:
    """One column: a data set, or the average of a group of them."""

    title: str
    group: str
    average: bool = False


@dataclass(frozen=True)
class Filled:
    """A table ready to be shown."""

    table: Table
    heads: tuple[Head, ...]
    lines: tuple[Line, ...]
    notes: tuple[str, ...] = field(default=())

    @property
    def groups(self) -> tuple[str, ...]:
        return self.table.groups

    def only_run(self) -> Filled:
        """The same without columns in which nothing was run."""
        kept = [k for k in range(len(self.heads)) if any(line.cells[k].ours.n for line in self.lines)]
        lines = tuple(replace(line, cells=tuple(line.cells[k] for k in kept)) for line in self.lines)
        return replace(self, heads=tuple(self.heads[k] for k in kept), lines=lines)


def fill(paper: Paper, name: str, runs: Sequence[Run], budget: str = "small") -> Filled:
    """The table with these runs; at a smaller `budget` other data may stand in for the paper's."""
    table = paper.tables[name]
    experiment = paper.experiments[table.experiment]
    places = [paper.data[column.benchmark].at(budget)[0] for column in table.columns]
    # Show a stand-in once per group, not in every column that it stands in for.
    shown = [
        place == column.benchmark or (place, column.group) not in list(zip(places, _groups(table)))[:k]
        for k, (place, column) in enumerate(zip(places, table.columns))
    ]
    apart = [paper.data[column.benchmark].told_apart(budget) for column in table.columns]
    found: dict[str, list[Found]] = {}
    for row in experiment.rows:
        found[row] = [
            find(paper, experiment, row, place, runs, apart[k], stand_in=place != column.benchmark)
            if shown[k]
            else Found(row, ())
            for k, (column, place) in enumerate(zip(table.columns, places))
        ]
    drafts = {row: [each.statistic(table.metric).scaled(100) for each in found[row]] for row in found}
    lines = _lines(paper, table, drafts)
    heads = _heads(table)
    return Filled(table, heads, _marked(table, lines), tuple(_notes(paper, table, found, places, shown)))


def _groups(table: Table) -> list[str]:
    return [column.group for column in table.columns]


def _heads(table: Table) -> tuple[Head, ...]:
    heads: list[Head] = []
    for group in table.groups:
        heads += [Head(column.title, group) for column in table.columns if column.group == group]
        heads.append(Head("Avg.", group, average=True))
    return tuple(heads)


def _lines(paper: Paper, table: Table, drafts: Mapping[str, Sequence[Statistic]]) -> list[Line]:
    run = [any(values[k].n for values in drafts.values()) for k in range(len(table.columns))]
    lines = []
    for row, values in drafts.items():
        printed = table.printed.get(row)
        if printed is None and not any(value.n for value in values):
            continue  # neither the paper nor we have a number
        cells: list[Cell] = []
        for g, group in enumerate(table.groups):
            mine = [k for k, column in enumerate(table.columns) if column.group == group]
            cells += [Cell(values[k], printed[k] if printed else None) for k in mine]
            cells.append(_average(table, row, g, [k for k in mine if run[k]], mine, values))
        lines.append(Line(row, paper.rows[row].title, tuple(cells), row in REFERENCES, printed is not None))
    return lines


def _average(
    table: Table, row: str, g: int, run: Sequence[int], all_of: Sequence[int], values: Sequence[Statistic]
) -> Cell:
    """The average over the columns that were run; the paper's over the same columns, or as printed if these are all."""
    printed = table.printed.get(row)
    paper: Printed | None = None
    if printed is not None:
        whole = Printed(table.averages[row][g])
        paper = whole if len(run) in (0, len(all_of)) else Printed(statistics.fmean(printed[k].mean for k in run))
    if not run or not all(values[k].n for k in run):
        return Cell(NOTHING, paper)
    return Cell(Statistic(statistics.fmean(values[k].mean for k in run), math.nan, len(run)), paper)


def _marked(table: Table, lines: Sequence[Line]) -> tuple[Line, ...]:
    """The lines with the best of each column marked, after rounding: two equal numbers are both best."""
    marked = list(lines)
    for k in range(len(lines[0].cells)) if lines else ():
        means = {line.row: line.cells[k].ours.mean for line in lines if not line.reference}
        shown = {row: round(mean, table.digits) for row, mean in means.items() if not math.isnan(mean)}
        if len(shown) < 2:
            continue
        top = max(shown.values())
        for n, line in enumerate(marked):
            if shown.get(line.row) == top:
                cells = list(line.cells)
                cells[k] = Cell(cells[k].ours, cells[k].paper, best=True)
                marked[n] = Line(line.row, line.title, tuple(cells), line.reference, line.printed)
    return tuple(marked)


def _notes(
    paper: Paper, table: Table, found: Mapping[str, Sequence[Found]], places: Sequence[str], shown: Sequence[bool]
) -> list[str]:
    """Notes that a reader needs before comparing numbers."""
    notes = []
    for place in dict.fromkeys(places):
        for group in table.groups:
            instead = [c.title for c, p in zip(table.columns, places) if p == place != c.benchmark and c.group == group]
            if instead:
                notes.append(
                    f"{place} stands in for {', '.join(instead)}: nothing here compares with the paper's number."
                )
    used = [run for row in found.values() for each in row for run in each.runs]
    sizes = list(dict.fromkeys(scale([run]) for run in used))
    if sizes:
        seeds = sorted({len(each.runs) for row in found.values() for each in row if each.runs})
        many = f"{seeds[0]} seed{'s' * (seeds[0] != 1)}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]} seeds"
        notes.append(f"Ours: {'; '.join(sizes)}; {many}.")
    here = [k for k, each in enumerate(shown) if each and any(row[k].runs for row in found.values())]
    for group in table.groups:
        mine = [k for k, column in enumerate(table.columns) if column.group == group]
        run = [k for k in mine if k in here]
        if 0 < len(run) < len(mine):
            titles = ", ".join(table.columns[k].title for k in run)
            notes.append(f"The {group} average, ours and the paper's, is over {titles} alone: the rest was not run.")
    for row, each in found.items():
        others = max((one.others for one in each), default=0)
        if others:
            title = paper.rows[row].title
            notes.append(f"{title} was run in {others + 1} settings: shown is the one with most seeds.")
    return notes
