"""From run directories to one page that explains itself: table, figures, and how every number came about.

The page is a single file without scripts, fonts or pictures from elsewhere; it can be mailed or archived.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from drcl.lab.report import findings
from drcl.lab.report.figures import style
from drcl.lab.report.pictures import Pictures
from drcl.lab.report.provenance import environment, methods, relative, shared_options
from drcl.lab.report.svg import variables
from drcl.lab.report.table import COLUMNS, Column, Row, Statistic, benchmark_notes, cell_text, rows
from drcl.lab.runs.checkpoint import replace_whole
from drcl.lab.runs.read import Run

_TILES = ("average_accuracy", "backward_transfer", "unmoved", "relative_time")
_RUN_COLUMNS = ("average_accuracy", "backward_transfer", "unmoved", "learning_seconds")
_BY_KEY = {column.key: column for column in COLUMNS}


def write_report(runs: Iterable[Run], path: str | Path, title: str | None = None, command: str | None = None) -> Path:
    """Write the page at ``path`` and return it. An older page is replaced in one moment, or not at all.

    ``command`` is what the page says it was made with; by default the ``drcl report`` that makes it again.
    """
    path = Path(path)
    html = page(list(runs), path, title, command)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_whole(path, html.encode())
    return path


def page(
    runs: Sequence[Run],
    path: Path = Path("report.html"),
    title: str | None = None,
    command: str | None = None,
) -> str:
    """The page as HTML. Run directories are named as seen from ``path``, where the page will be."""
    table = rows(runs)
    looks = style.looks(row.group for row in table if row.group is not None)
    names = list(dict.fromkeys(row.benchmark for row in table if row.label))
    beside = path.parent
    jinja = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    folder = resources.files("drcl.lab.report.templates")
    template = jinja.from_string(folder.joinpath("report.html").read_text(encoding="utf-8"))
    return template.render(
        title=title or _title(names),
        css=Markup(folder.joinpath("report.css").read_text(encoding="utf-8")),
        light=Markup(variables(dark=False)),
        dark=Markup(variables(dark=True)),
        sections=[_section(name, f"b{k}", table, looks, beside) for k, name in enumerate(names)],
        lost=[note for row in table if not row.label for note in row.notes],
        columns=[_heading(column) for column in COLUMNS],
        run_columns=[_heading(_BY_KEY[key]) for key in _RUN_COLUMNS],
        environment=environment(runs),
        command=command or _command(runs, path),
        counts=f"{sum(run.finished for run in runs)} of {len(runs)} runs finished",
    )


def _title(names: Sequence[str]) -> str:
    if not names:
        return "No runs to compare"
    return f"Continual learning on {names[0] if len(names) == 1 else f'{len(names)} benchmarks'}"


def _command(runs: Sequence[Run], path: Path) -> str:
    folders = dict.fromkeys(relative(run.path.parent, path.parent) for run in runs)
    return f"drcl report {' '.join(folders)} -o {path.name}"


def _heading(column: Column) -> dict[str, str]:
    return {"title": column.title, "unit": column.unit}


# ---- one benchmark


def _section(
    name: str, anchor: str, table: Sequence[Row], looks: Mapping[str, style.Look], beside: Path
) -> dict[str, Any]:
    mine = [row for row in table if row.benchmark == name]
    groups = [row.group for row in mine if row.group is not None]
    ranked = findings.contestants(mine)
    return {
        "id": anchor,
        "name": name,
        "finding": findings.finding(mine),
        "tiles": _tiles(ranked[0], looks) if ranked else None,
        "rivals": len(ranked),
        "rows": [_row(row, f"{anchor}-{k}", looks) for k, row in enumerate(mine)],
        "notes": benchmark_notes(table, name),
        "pictures": Pictures(groups, anchor, looks),
        "shared": shared_options(groups),
        "methods": [
            {
                **method,
                "anchor": f"{anchor}-{k}",
                "runs": [_run(run, counts, beside) for run, counts in method["runs"]],
            }
            for k, method in enumerate(methods(groups))
        ],
    }


def _tiles(row: Row, looks: Mapping[str, style.Look]) -> dict[str, Any]:
    return {
        "label": row.label,
        "tone": looks[row.label].tone.name,
        "values": [_cell(_BY_KEY[key], row.values[key]) for key in _TILES],
    }


def _cell(column: Column, value: Statistic) -> dict[str, str]:
    mean, sign, deviation = cell_text(column, value).partition(" ± ")
    return {**_heading(column), "mean": mean, "spread": f"± {deviation}" if sign else ""}


def _row(row: Row, anchor: str, looks: Mapping[str, style.Look]) -> dict[str, Any]:
    cells = [{**_cell(column, row.values[column.key]), "best": column.key in row.best} for column in COLUMNS]
    return {
        "label": row.label,
        "anchor": anchor,
        "tone": looks[row.label].tone.name,
        "reference": row.reference,
        "seeds": len(row.seeds),
        "cells": cells,
    }


def _run(run: Run, left_out: str, beside: Path) -> dict[str, Any]:
    cells = []
    for key in _RUN_COLUMNS:
        value = run.value(key) if run.finished else math.nan
        cells.append(cell_text(_BY_KEY[key], Statistic(value, math.nan, 1)))
    return {
        "path": relative(run.path, beside),
        "seed": "–" if run.seed is None else str(run.seed),
        "cells": cells,
        "status": f"not counted, {left_out}" if left_out else run.status,
        "counts": run.finished and not left_out,
    }
