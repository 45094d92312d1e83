"""How a table looks: in a terminal (rich), in Markdown, as CSV for a program and as LaTeX for a paper."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Iterable, Sequence

from rich import box
from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from drcl.lab.common.words import clean
from drcl.lab.report.table import COLUMNS, HELD, Column, Row, Statistic, benchmark_notes, row_text, rows
from drcl.lab.runs.read import Run

_NAME = 40  # the longest name of a method that stays on one line
_WIDE = 220  # a table for a pipe or a file is as wide as its numbers need, up to this
SUMMARY = ("average_accuracy", "backward_transfer", "unmoved", "relative_time")


def _benchmarks(table: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row.benchmark for row in table))


# ---- terminal


def rich_table(table: Sequence[Row]) -> RenderableType:
    """Every benchmark's table with its notes, for ``Console.print``."""
    parts: list[RenderableType] = []
    for benchmark in _benchmarks(table):
        mine = [row for row in table if row.benchmark == benchmark]
        if any(row.label for row in mine):
            shown = _rich(mine, COLUMNS)
            shown.title = Text(benchmark, style="bold")
            parts.append(shown)
        else:
            parts.append(Text(benchmark, style="bold"))
        notes = benchmark_notes(table, benchmark)
        parts.extend(Padding(Text(note, style="yellow"), (0, 1)) for note in notes)
        parts.append(Text())
    return Group(*parts[:-1])


def _rich(mine: Sequence[Row], columns: Sequence[Column]) -> Table:
    shown = Table(box=box.SIMPLE_HEAD, title_justify="left", header_style="", pad_edge=False, padding=(0, 1))
    # A long name breaks between its settings, so that it leaves room for the numbers.
    fits = all(len(row.label) <= _NAME for row in mine)
    name = Text("method", style="bold")
    shown.add_column(name, no_wrap=fits, overflow="fold", max_width=_NAME, min_width=_NAME // 2, vertical="bottom")
    shown.add_column(Text("seeds", style="dim"), justify="right")
    for column in columns:
        head = Text(column.title, style="bold", justify="right")
        if column.unit:
            head.append(f"\n{column.unit}", style="dim")
        shown.add_column(head, justify="right")
    for row in mine:
        cells = [_rich_cell(row, column) for column in columns]
        name = Text(row.label, style="dim" if row.reference else "")
        shown.add_row(name, Text(str(len(row.seeds)), style="dim"), *cells)
    return shown


def _rich_cell(row: Row, column: Column) -> Text:
    value = row.values[column.key]
    mean, sign, deviation = row_text(row, column).partition(" ± ")
    faint = row.reference or math.isnan(value.mean)
    style = "dim" if faint else "bold green" if column.key in row.best else ""
    return Text.assemble((mean, style), (sign + deviation, "dim"))


# Like rich's rounded box, but without lines between columns, because numbers in a row belong together.
_CALM = box.Box("╭──╮\n│  │\n├──┤\n│  │\n├──┤\n├──┤\n│  │\n╰──╯\n")
_BAR = 10


def summary_table(runs: Iterable[Run]) -> Table:
    """The columns at the end of a demonstration: what was kept, what was lost, what did not move, what it cost."""
    everything = rows(runs)
    table = [row for row in everything if row.label]
    by_key = {column.key: column for column in COLUMNS}
    shown = Table(box=_CALM, border_style="dim", header_style="", padding=(0, 1))
    shown.title = Text(" · ".join(_scope(table, name) for name in _benchmarks(table)), style="bold")
    shown.title_justify = "left"
    shown.add_column(Text("method", style="bold"), no_wrap=True, vertical="bottom")
    for key in SUMMARY:
        column = by_key[key]
        head = Text(column.title.replace(" ", "\n"), style="bold", justify="right")  # narrow, to fit 80 columns
        head.append(f"\n{column.unit}", style="not bold dim")
        shown.add_column(head, justify="right", no_wrap=True, vertical="bottom")
    several = len(_benchmarks(table)) > 1
    for row in table:
        best = "average_accuracy" in row.best
        name = f"{row.label}, {row.benchmark}" if several else row.label
        cells = [_rich_cell(row, by_key[key]) for key in SUMMARY]
        cells[0] = _bar(row, best).append_text(cells[0])
        shown.add_row(Text(name, style="bold" if best else "dim" if row.reference else ""), *cells)
    notes = [note for name in _benchmarks(everything) for note in benchmark_notes(everything, name)]
    if notes:
        shown.caption = Text("\n".join(notes), style="dim", justify="left")
    return shown


def _scope(table: Sequence[Row], benchmark: str) -> str:
    """The benchmark with its size: ``digits-permuted, 8 tasks, 3 seeds``."""
    groups = [row.group for row in table if row.benchmark == benchmark and row.group is not None]
    finished = [run for group in groups for run in group.finished]
    if not finished:
        return benchmark
    tasks, seeds = finished[0].tasks, len({run.seed for run in finished})
    return f"{benchmark}, {tasks} task{'s' * (tasks != 1)}, {seeds} seed{'s' * (seeds != 1)}"


def _bar(row: Row, best: bool) -> Text:
    """Average accuracy as a bar, to compare at a glance."""
    share = row.values["average_accuracy"].mean
    if math.isnan(share):
        return Text()
    full, half = divmod(round(2 * share * _BAR), 2)
    style = "green" if best else "dim" if row.reference else "cyan"
    return Text.assemble(("━" * full + "╸" * half, style), ("─" * (_BAR - full - half), "dim"), "  ")


def _text(table: Sequence[Row]) -> str:
    out = io.StringIO()
    console = Console(file=out, width=_WIDE, color_system=None, legacy_windows=False)
    shown = rich_table(table)
    console.width = max(140, min(_WIDE, Measurement.get(console, console.options, shown).maximum))
    console.print(shown)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


# ---- Markdown


def _markdown(table: Sequence[Row]) -> str:
    parts = []
    for benchmark in _benchmarks(table):
        mine = [row for row in table if row.benchmark == benchmark]
        parts.append(f"### {_md(benchmark)}\n")
        if any(row.label for row in mine):
            heads = ["method", "seeds"]
            heads += [f"{column.title} ({column.unit})" if column.unit else column.title for column in COLUMNS]
            lines = [
                "| " + " | ".join(_md(head) for head in heads) + " |",
                "|---|" + "---:|" * (len(heads) - 1),
            ]
            for row in mine:
                cells = [_md(row.label), str(len(row.seeds))]
                for column in COLUMNS:
                    text = row_text(row, column)
                    cells.append(f"**{text}**" if column.key in row.best else text)
                lines.append("| " + " | ".join(cells) + " |")
            parts.append("\n".join(lines) + "\n")
        notes = benchmark_notes(table, benchmark)
        if notes:
            parts.append("\n".join(f"- {_md(note)}" for note in notes) + "\n")
    return "\n".join(parts)


def _md(text: str) -> str:
    return re.sub(r"([\\`*_{}\[\]<>|#])", r"\\\1", text.replace("\n", " "))


# ---- CSV


def _csv(table: Sequence[Row]) -> str:
    """Fractions and plain units at full precision; of the notes, only the number of runs left out."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names = [f"{column.key}{end}" for column in (*COLUMNS, HELD) for end in ("", "_std", "_n")]
    writer.writerow(["benchmark", "method", "seeds", "finished", "left_out", *names])
    for row in table:
        left_out = len(row.group.unfinished) + len(row.group.left_out) if row.group else len(row.notes)
        cells: list[object] = [
            row.benchmark,
            row.label,
            " ".join(map(str, row.seeds)),
            len(row.seeds),
            left_out,
        ]
        for column in (*COLUMNS, HELD):
            cells += _numbers(row.values[column.key])
        writer.writerow(cells)
    return out.getvalue()


def _numbers(value: Statistic) -> list[object]:
    return ["" if math.isnan(x) else repr(x) for x in (value.mean, value.deviation)] + [value.n]


# ---- LaTeX


_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "–": "--",
    "−": "$-$",
    "×": r"$\times$",
    "±": r"$\pm$",
}


def _tex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text.replace("\n", " "))


def _latex(table: Sequence[Row]) -> str:
    r"""Booktabs, one ``tabular`` for all benchmarks; needs ``\usepackage{booktabs}``."""
    width = len(COLUMNS) + 2
    heads = [("method", ""), ("seeds", ""), *((column.title, column.unit) for column in COLUMNS)]
    lines = [r"\begin{tabular}{lr" + "r" * len(COLUMNS) + "}", r"\toprule"]
    lines.append(" & ".join(_tex(title) for title, _ in heads) + r" \\")
    lines.append(" & ".join(_tex(f"({unit})") if unit else "" for _, unit in heads) + r" \\")
    comments = []
    for benchmark in _benchmarks(table):
        mine = [row for row in table if row.benchmark == benchmark and row.label]
        comments += [f"% {note}" for note in benchmark_notes(table, benchmark)]
        if not mine:
            continue
        lines += [r"\midrule", rf"\multicolumn{{{width}}}{{l}}{{\emph{{{_tex(benchmark)}}}}} \\"]
        for row in mine:
            cells = [_tex(row.label), str(len(row.seeds))]
            for column in COLUMNS:
                text = _tex(row_text(row, column))
                cells.append(rf"\textbf{{\boldmath {text}}}" if column.key in row.best else text)
            lines.append(" & ".join(cells) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}"]
    return "\n".join([comment.replace("\n", " ") for comment in comments] + lines) + "\n"


FORMATS: dict[str, Callable[[Sequence[Row]], str]] = {
    "text": _text,
    "markdown": _markdown,
    "csv": _csv,
    "latex": _latex,
}


def render(table: Sequence[Row], format: str = "text") -> str:
    """The table as ``"text"``, ``"markdown"``, ``"csv"`` or ``"latex"``."""
    if format not in FORMATS:
        raise ValueError(f"format={format!r}; choose one of {', '.join(FORMATS)}")
    return clean(FORMATS[format](table), keep="\n")
