"""From run directories to one page that explains itself: table, figures, and how every number came about.

The page is a single file without scripts, fonts or pictures from elsewhere; it can be mailed or archived.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from drcl.lab import findings
from drcl.lab.figures import accuracy_curves, cost, drift, forgetting, matrix, style
from drcl.lab.figures.page import inline_svg, variables
from drcl.lab.groups import Group
from drcl.lab.rundir import Run
from drcl.lab.table import COLUMNS, Column, Row, Statistic, benchmark_notes, cell_text, rows, seed_text

_TILES = ("average_accuracy", "backward_transfer", "unmoved", "relative_time")
_RUN_COLUMNS = ("average_accuracy", "backward_transfer", "unmoved", "learning_seconds")
_BY_KEY = {column.key: column for column in COLUMNS}
_UNITS = {"x SGD": "× SGD"}


@dataclass(frozen=True)
class Picture:
    """One figure on the page."""

    title: str
    caption: str
    svg: Markup


def write_report(
    runs: Iterable[Run], path: str | Path, title: str | None = None, command: str | None = None
) -> Path:
    """Write the page at ``path`` and return it. A page that was there is replaced in one moment, or not at all."""
    path = Path(path)
    html = page(list(runs), path.parent, title, command)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(html)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(draft, 0o644)  # a temporary file is private, a page is not
        os.replace(draft, path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
    return path


def page(
    runs: Sequence[Run], beside: Path = Path(), title: str | None = None, command: str | None = None
) -> str:
    """The page as HTML. Run directories are named relative to ``beside``, where the page will be."""
    table = rows(runs)
    looks = style.looks(row.group for row in table if row.group is not None)
    names = list(dict.fromkeys(row.benchmark for row in table if row.label))
    sections = [_section(name, k, table, looks, beside) for k, name in enumerate(names)]
    lost = [note for row in table if not row.label for note in row.notes]
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    folder = resources.files("drcl.lab.templates")
    template = environment.from_string(folder.joinpath("report.html").read_text(encoding="utf-8"))
    return template.render(
        title=title or _title(names),
        css=Markup(folder.joinpath("report.css").read_text(encoding="utf-8")),
        light=Markup(variables(dark=False)),
        dark=Markup(variables(dark=True)),
        sections=sections,
        lost=lost,
        columns=[_heading(column) for column in COLUMNS],
        run_columns=[_heading(_BY_KEY[key]) for key in _RUN_COLUMNS],
        environment=_environment(runs),
        command=command or _command(runs, beside),
        counts=f"{sum(run.finished for run in runs)} of {len(runs)} runs finished",
    )


def _title(names: Sequence[str]) -> str:
    if not names:
        return "No runs to compare"
    return (
        f"Continual learning on {names[0]}"
        if len(names) == 1
        else f"Continual learning on {len(names)} benchmarks"
    )


def _heading(column: Column) -> dict[str, str]:
    return {"title": column.title, "unit": _UNITS.get(column.unit, column.unit)}


# ---- one benchmark


def _section(
    name: str, index: int, table: Sequence[Row], looks: Mapping[str, style.Look], beside: Path
) -> dict[str, Any]:
    mine = [row for row in table if row.benchmark == name]
    groups = [row.group for row in mine if row.group is not None]
    best = findings.contestants(mine)[:1]
    return {
        "id": f"b{index}",
        "name": name,
        "finding": findings.finding(mine),
        "tiles": [_tile(best[0], key) for key in _TILES] if best else [],
        "best": best[0].label if best else "",
        "rows": [_row(row, f"b{index}-{k}", looks) for k, row in enumerate(mine)],
        "notes": benchmark_notes(table, name),
        "curves": _curves([run for g in groups for run in g.runs], f"b{index}", looks),
        "matrices": _matrices(groups, f"b{index}"),
        "drifts": _drifts(groups, f"b{index}"),
        "still": _still(groups),
        "methods": [_method(g, f"b{index}-{k}", beside) for k, g in enumerate(groups)],
    }


def _tile(row: Row, key: str) -> dict[str, str]:
    column, value = _BY_KEY[key], row.values[key]
    mean = cell_text(column, Statistic(value.mean, math.nan, value.n))
    spread = "" if math.isnan(value.deviation) else f"± {column.scale * value.deviation:.{column.digits}f}"
    return {**_heading(column), "mean": mean, "spread": spread}


def _row(row: Row, anchor: str, looks: Mapping[str, style.Look]) -> dict[str, Any]:
    cells = []
    for column in COLUMNS:
        mean, sign, deviation = cell_text(column, row.values[column.key]).partition(" ± ")
        best = column.key in row.best
        cells.append(
            {**_heading(column), "mean": mean, "spread": f"± {deviation}" if sign else "", "best": best}
        )
    return {
        "label": row.label,
        "anchor": anchor,
        "tone": looks[row.label].tone.name,
        "reference": row.reference,
        "seeds": len(row.seeds),
        "cells": cells,
    }


def _curves(runs: Sequence[Run], name: str, looks: Mapping[str, style.Look]) -> list[Picture]:
    if not any(run.finished for run in runs):
        return []
    several = any(len(g.finished) > 1 for g in style.drawable(runs))
    band = " The band is one standard deviation over seeds." if several else ""
    captions = {
        accuracy_curves: "Mean test accuracy on the tasks learned up to then." + band,
        forgetting: "How far earlier tasks fell from the best they had." + band,
        cost: "Training and consolidation; evaluation is not counted.",
    }
    pictures = []
    for module, caption in captions.items():
        if module is cost and all(math.isnan(run.value("learning_seconds")) for run in runs if run.finished):
            continue
        svg = inline_svg(
            module.draw(runs, looks),
            f"{name}-{style.slug(module.TITLE)}",
            module.TITLE,
            module.describe(runs),
        )
        pictures.append(Picture(module.TITLE, caption, Markup(svg)))
    return pictures


def _matrices(groups: Sequence[Group], name: str) -> list[Picture]:
    # A bound that was trained once has one row; its matrix would be an empty square.
    drawn = [g for g in groups if g.finished and (~_empty_rows(g)).sum() > 1]
    drawn = drawn or [g for g in groups if g.finished]
    return [
        Picture(
            g.label,
            f"Mean over {seed_text([run.seed for run in g.finished if run.seed is not None])}.",
            Markup(inline_svg(matrix.draw(g.runs), f"{name}-m{k}", g.label, matrix.describe(g.runs))),
        )
        for k, g in enumerate(drawn)
    ]


def _empty_rows(g: Group) -> Any:
    values = g.matrix()
    return (values != values).all(axis=1)


def _moving(g: Group) -> bool:
    """Whether a drift map would be empty of anything to see: every weight moved at every task."""
    shares = drift.shares(g)[1]
    return bool(shares.size) and not (shares > 0).any()


def _drifts(groups: Sequence[Group], name: str) -> list[Picture]:
    recorded = [g for g in groups if g.finished and drift.shares(g)[1].size]
    drawn = [g for g in recorded if not _moving(g)] or recorded
    return [
        Picture(
            g.label,
            "Bit for bit, layer by layer.",
            Markup(inline_svg(drift.draw(g.runs), f"{name}-d{k}", g.label, drift.describe(g.runs))),
        )
        for k, g in enumerate(drawn)
    ]


def _still(groups: Sequence[Group]) -> str:
    recorded = [g for g in groups if g.finished and drift.shares(g)[1].size]
    moving = [g.label for g in recorded if _moving(g)]
    if not moving or len(moving) == len(recorded):
        return ""
    names = moving[0] if len(moving) == 1 else ", ".join(moving[:-1]) + " and " + moving[-1]
    return f"{names} moved every weight at every task, so there is no map of what {'it' if len(moving) == 1 else 'they'} left in place."


# ---- how it was run


def _method(g: Group, anchor: str, beside: Path) -> dict[str, Any]:
    first = g.runs[0]
    tables = {
        "benchmark": first.options("benchmark_options"),
        "method": first.options("method_options"),
        "training": first.options("training"),
    }
    return {
        "label": g.label,
        "anchor": anchor,
        "options": {name: list(_flat(options)) for name, options in tables.items() if options},
        "runs": [_run(run, g, beside) for run in g.runs],
    }


def _run(run: Run, g: Group, beside: Path) -> dict[str, Any]:
    counted = run in g.finished
    cells = []
    for key in _RUN_COLUMNS:
        value = Statistic(run.value(key) if run.finished else math.nan, math.nan, 1)
        cells.append(cell_text(_BY_KEY[key], value))
    return {
        "path": _relative(run.path, beside),
        "seed": "–" if run.seed is None else str(run.seed),
        "cells": cells,
        "status": run.status if counted or not run.finished else "not counted, its seed is there already",
        "counted": counted,
    }


def _relative(path: Path, beside: Path) -> str:
    """As seen from the page; a page that is sent away should not tell where somebody's home directory is."""
    try:
        return Path(os.path.relpath(path.resolve(), beside.resolve())).as_posix()
    except ValueError:  # another drive
        return path.name


def _flat(options: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    for key, value in options.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value if isinstance(value, str) else json.dumps(value, default=str)


def _environment(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """What the runs have in common, and every value where they do not."""
    seen: dict[str, dict[str, None]] = {}
    for run in runs:
        for key, value in _flat(run.environment):
            seen.setdefault(key, {})[value] = None
    return [(key, " / ".join(values)) for key, values in seen.items()]


def _command(runs: Sequence[Run], beside: Path) -> str:
    folders = dict.fromkeys(_relative(run.path.parent, beside) for run in runs)
    return "drcl report " + " ".join(folders) + " -o report.html"
