"""From run directories to one self-explanatory page: table, figures, and where every number comes from.

The page is a single file that loads nothing from elsewhere, so it can be mailed or archived. Its one script sorts,
filters and shows values. Without the script the page shows everything, and the browser itself shows the values.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup
from matplotlib.markers import MarkerStyle

from drcl.lab.common.words import clean
from drcl.lab.report import findings
from drcl.lab.report.figures import style
from drcl.lab.report.glossary import WORDS
from drcl.lab.report.pictures import Pictures
from drcl.lab.report.provenance import environment, methods, relative, shared_options
from drcl.lab.report.svg import marker_path, variables
from drcl.lab.report.table import COLUMNS, HELD, Column, Row, Statistic, benchmark_notes, cell_text, rows, shown
from drcl.lab.runs.checkpoint import replace_whole
from drcl.lab.runs.read import Run

_TILES = ("average_accuracy", "backward_transfer", "unmoved", "relative_time")
_RUN_COLUMNS = ("average_accuracy", "backward_transfer", "unmoved", "learning_seconds")
_BY_KEY = {column.key: column for column in COLUMNS}


def write_report(runs: Iterable[Run], path: str | Path, title: str | None = None, command: str | None = None) -> Path:
    """Write the page to ``path`` and return the path. An older page is replaced completely, or not at all.

    ``command`` is the command that the page names as its origin; by default the ``drcl report`` that makes it again.
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
    jinja = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_shown
    )
    folder = resources.files("drcl.lab.report.templates")
    script = folder.joinpath("report.js").read_text(encoding="utf-8")
    template = jinja.from_string(folder.joinpath("report.html").read_text(encoding="utf-8"))
    return template.render(
        title=title or _title(names),
        css=Markup(folder.joinpath("report.css").read_text(encoding="utf-8")),
        script=Markup(script),
        script_digest=_digest(script),
        methods=[_named(label, look) for label, look in looks.items()],
        words=[{"word": word, "about": about} for word, about in _glossary()],
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


def _digest(script: str) -> str:
    """The hash by which the page's security policy recognises its own script; no other script runs there."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _glossary() -> list[tuple[str, str]]:
    titles = {column.key: column.title for column in (*COLUMNS, HELD)}
    titles |= {"learning_seconds": "time in seconds", "relative_time": "time as a multiple of SGD's"}
    return [(titles.get(key, key.replace("_", " ")), about) for key, about in WORDS.items()]


def _named(label: str, look: style.Look) -> dict[str, Any]:
    """A method as the page shows it: its name, its colour and its marker."""
    line = not MarkerStyle(look.marker).is_filled()
    return {"label": label, "key": look.key, "tone": look.tone.name, "marker": marker_path(look.marker), "line": line}


def _shown(value: Any) -> Any:
    """Values for the template: text is escaped, our own markup stays."""
    return value if isinstance(value, Markup) or not isinstance(value, str) else clean(value, keep="\n\t")


def _title(names: Sequence[str]) -> str:
    if not names:
        return "No runs to compare"
    return f"Continual learning on {names[0] if len(names) == 1 else f'{len(names)} benchmarks'}"


def _command(runs: Sequence[Run], path: Path) -> str:
    folders = dict.fromkeys(relative(run.path.parent, path.parent) for run in runs)
    return f"drcl report {' '.join(folders)} -o {path.name}"


def _heading(column: Column) -> dict[str, str]:
    return {"title": column.title, "unit": column.unit, "about": column.about}


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
                "key": looks[method["label"]].key,
                "runs": [_run(run, counts, beside) for run, counts in method["runs"]],
            }
            for k, method in enumerate(methods(groups))
        ],
    }


def _tiles(row: Row, looks: Mapping[str, style.Look]) -> dict[str, Any]:
    return {
        **_named(row.label, looks[row.label]),
        "values": [_cell(row, _BY_KEY[key]) for key in _TILES],
    }


def _cell(row: Row, column: Column) -> dict[str, Any]:
    told = shown(row, column)
    value = row.values[told.key]
    mean, sign, deviation = cell_text(told, value).partition(" ± ")
    return {
        **_heading(told),
        "mean": mean,
        "spread": f"± {deviation}" if sign else "",
        "number": "" if math.isnan(value.mean) else repr(value.mean),  # to sort by
        "instead": told is not column,
    }


def _row(row: Row, anchor: str, looks: Mapping[str, style.Look]) -> dict[str, Any]:
    cells = [{**_cell(row, column), "best": column.key in row.best} for column in COLUMNS]
    return {
        **_named(row.label, looks[row.label]),
        "anchor": anchor,
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
