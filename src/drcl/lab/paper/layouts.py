"""Renders a table of the paper for a terminal, and in Markdown, LaTeX and HTML."""

from __future__ import annotations

import html
import io
import math
from collections.abc import Callable, Sequence

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from drcl.lab.paper.contents import Printed
from drcl.lab.paper.tables import Cell, Filled, Line
from drcl.lab.report.table import Statistic

KEY = "First line: ours, the best in bold. Second line: the paper's. A dash: not run, or not printed."
_WIDE = 112  # terminal columns that a whole table needs
BESIDE = "Ours, the best in bold; the paper's in brackets. A dash: not run, or not printed."


def number(value: float, filled: Filled) -> str:
    """``71.9``, or ``+3.7`` in a table with signs."""
    if math.isnan(value):
        return "–"
    text = f"{value:+.{filled.table.digits}f}" if filled.table.signed else f"{value:.{filled.table.digits}f}"
    text = text if float(text) else text.lstrip("+-")
    return text.replace("-", "−")


def ours(value: Statistic, filled: Filled) -> str:
    spread = "" if math.isnan(value.deviation) else f" ± {value.deviation:.{filled.table.digits}f}"
    return number(value.mean, filled) + spread


def theirs(printed: Printed | None, filled: Filled) -> str:
    if printed is None:
        return "–"
    spread = "" if printed.deviation is None else f" ± {printed.deviation:.{filled.table.digits}f}"
    return number(printed.mean, filled) + spread


# ---- terminal


def rich_table(filled: Filled, width: int = _WIDE) -> RenderableType:
    """For ``Console.print``; if the columns do not all fit, each group of data sets gets its own table."""
    every = range(len(filled.heads))
    groups = [[k for k in every if filled.heads[k].group == group] for group in filled.groups]
    parts: list[RenderableType] = [_rich_part(filled, part) for part in ([list(every)] if width >= _WIDE else groups)]
    notes = [Padding(Text(note, style="yellow"), (0, 1)) for note in filled.notes]
    return Group(*parts, Padding(Text(KEY, style="dim"), (0, 1)), *notes)


def _rich_part(filled: Filled, columns: Sequence[int]) -> RichTable:
    shown = RichTable(box=box.SIMPLE_HEAD, header_style="", pad_edge=False, padding=(0, 1), title_justify="left")
    shown.title = Text(filled.table.title, style="bold")
    shown.add_column(Text("\nmethod", style="bold"), no_wrap=True)
    for k in columns:
        head = filled.heads[k]
        first = k == columns[0] or filled.heads[k - 1].group != head.group
        over = Text(f"{head.group}\n" if first else "\n", style="dim")
        name = Text(head.title, style="dim" if head.average else "bold")
        shown.add_column(Text.assemble(over, name), justify="right")
    for n, line in enumerate(filled.lines):
        name = Text(line.title, style="dim" if line.reference else "bold" if line.row == "drcl" else "")
        cells = [_rich(line.cells[k], line, filled, tight=len(columns) < len(filled.heads)) for k in columns]
        shown.add_row(name, *cells, end_section=_ends(filled, n))
    return shown


def _ends(filled: Filled, n: int) -> bool:
    """Whether a line follows: after the bounds, before the paper's own row and after the paper's last row."""
    if n + 1 == len(filled.lines):
        return False
    line, after = filled.lines[n], filled.lines[n + 1]
    return line.row == "sgd" or after.row == "drcl" or (line.printed and not after.printed)


def _rich(cell: Cell, line: Line, filled: Filled, tight: bool) -> Text:
    style = "dim" if math.isnan(cell.ours.mean) or line.reference else "bold green" if cell.best else ""
    mean, sign, spread = ours(cell.ours, filled).partition(" ± ")
    beside = theirs(cell.paper, filled)
    if tight:  # a number split over two lines is hard to read
        sign, beside = sign.strip(), beside.replace(" ± ", "±")
    text = Text.assemble((mean, style), (sign + spread, "dim"))
    if line.printed:
        text.append(f"\n{beside}", style="dim cyan")
    return text


def _text(filled: Filled) -> str:
    out = io.StringIO()
    Console(file=out, width=132, color_system=None, legacy_windows=False).print(rich_table(filled))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


# ---- Markdown, LaTeX, HTML


def _markdown(filled: Filled) -> str:
    heads = ["method", *(f"{head.group} {head.title}" if head.average else head.title for head in filled.heads)]
    lines = [f"**{filled.table.title}.** {BESIDE}", "", "| " + " | ".join(heads) + " |"]
    lines.append("|---|" + "---:|" * len(filled.heads))
    for line in filled.lines:
        cells = [line.title]
        for cell in line.cells:
            text = ours(cell.ours, filled)
            text = f"**{text}**" if cell.best else text
            cells.append(f"{text} ({theirs(cell.paper, filled)})" if line.printed else text)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *(f"- {note}" for note in filled.notes)]).rstrip() + "\n"


_TEX = {"%": r"\%", "&": r"\&", "_": r"\_", "#": r"\#", "±": r"$\pm$", "–": "--", "−": "$-$"}


def _tex(text: str) -> str:
    return "".join(_TEX.get(character, character) for character in text)


def _latex(filled: Filled) -> str:
    r"""Booktabs, as in the paper; needs ``\usepackage{booktabs}``."""
    sizes = [sum(head.group == group for head in filled.heads) for group in filled.groups]
    lines = [f"% {note}" for note in filled.notes]
    lines += [r"\begin{tabular}{l|" + "|".join("c" * size for size in sizes) + "}", r"\toprule"]
    groups = [rf"\multicolumn{{{size}}}{{c}}{{{group} tasks}}" for group, size in zip(filled.groups, sizes)]
    lines.append(" & " + " & ".join(groups) + r" \\")
    lines.append("Method & " + " & ".join(_tex(head.title) for head in filled.heads) + r" \\")
    lines.append(r"\midrule")
    for n, line in enumerate(filled.lines):
        cells = []
        for cell in line.cells:
            text = _tex(ours(cell.ours, filled))
            text = rf"\textbf{{\boldmath {text}}}" if cell.best else text
            beside = rf" {{\scriptsize({_tex(theirs(cell.paper, filled))})}}" if line.printed else ""
            cells.append(text + beside)
        lines.append(f"{_tex(line.title)} & " + " & ".join(cells) + r" \\")
        if _ends(filled, n):
            lines.append(r"\midrule")
    caption = f"% {filled.table.title}. Ours, the best in bold; the paper's in brackets."
    return "\n".join([caption, *lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _html(filled: Filled) -> str:
    """A ``<table>`` for a page, which provides the style."""
    out = [f'<table class="results paper"><caption>{html.escape(filled.table.title)}</caption><thead><tr>']
    out.append('<th scope="col">method</th>')
    for head in filled.heads:
        out.append(f'<th scope="col">{html.escape(head.title)}<small>{html.escape(head.group)}</small></th>')
    out.append("</tr></thead><tbody>")
    for line in filled.lines:
        out.append(f'<tr{" class=reference" if line.reference else ""}><th scope="row">{html.escape(line.title)}</th>')
        for head, cell in zip(filled.heads, line.cells):
            label = f"{head.title}, {head.group}" if head.average else head.title
            beside = f" <small>({html.escape(theirs(cell.paper, filled))})</small>" if line.printed else ""
            mark = ' class="best"' if cell.best else ""
            text = html.escape(ours(cell.ours, filled))
            out.append(f'<td data-label="{html.escape(label)}"{mark}><b>{text}</b>{beside}</td>')
        out.append("</tr>")
    return "".join([*out, "</tbody></table>"]) + "\n"


FORMATS: dict[str, Callable[[Filled], str]] = {
    "text": _text,
    "markdown": _markdown,
    "latex": _latex,
    "html": _html,
}


def render(filled: Filled, format: str = "text") -> str:
    """The table as ``"text"``, ``"markdown"``, ``"latex"`` or ``"html"``."""
    if format not in FORMATS:
        raise ValueError(f"format={format!r}; choose one of {', '.join(FORMATS)}")
    return FORMATS[format](filled)
