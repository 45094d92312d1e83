"""Read the files of a run's directory as far as possible; they may be cut short or damaged."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from drcl.lab.common.words import clean, clean_tree
from drcl.lab.runs import metrics
from drcl.lab.training.changes import BINS, EDGES
from drcl.lab.training.rows import (
    ChangeRow,
    CurvePoint,
    DriftRow,
    IterationRow,
    LossPoint,
    Record,
    StepRow,
    UpdateRow,
)

DRIFT_FIELDS = tuple(f.name for f in fields(DriftRow))
CURVE_FIELDS = tuple(f.name for f in fields(CurvePoint))
MOST_TASKS = 5000  # in a file to read; its matrix takes 200 MB
# The smaller tables of a run: one kind of row each.
RECORDS: dict[str, type[Record]] = {
    "losses": LossPoint,
    "steps": StepRow,
    "iterations": IterationRow,
    "updates": UpdateRow,
    "changes": ChangeRow,
}
_BIN_NAMES = ("below", *(f"{edge:.3g}" for edge in EDGES))  # a bin begins at the edge it is named after


def record_fields(kind: type[Record]) -> tuple[str, ...]:
    """The first line of its file."""
    names = tuple(f.name for f in fields(kind))
    return (*names[:-1], *_BIN_NAMES) if kind is ChangeRow else names


def record_cells(row: Record) -> list[object]:
    """A row of its file."""
    values = [getattr(row, f.name) for f in fields(row)]
    if isinstance(row, ChangeRow):
        return [*values[:-1], *row.counts]
    return [cell(value) if isinstance(value, float) else value for value in values]


def to_record(kind: type[Record]) -> Callable[[list[str]], Any]:
    """From the cells of a line back to the row."""
    kinds = [f.type for f in fields(kind)]

    def build(cells: list[str]) -> Record:
        task = _task(cells[0])
        if kind is ChangeRow:
            counts = tuple(map(int, cells[-BINS:]))
            weights, unmoved = int(cells[2]), int(cells[3])
            if sum(counts) + unmoved != weights or min(counts) < 0 or unmoved < 0:
                raise ValueError(f"its bins and the unmoved weights do not add up to {weights}")
            return ChangeRow(task, clean(cells[1]), weights, unmoved, counts)
        read: list[Any] = [float(c or "nan") if t == "float" else int(c) for c, t in zip(cells, kinds)]
        return kind(*read)

    return build


def cell(value: float) -> str:
    """A number as it is written; nothing for NaN."""
    return "" if math.isnan(value) else repr(float(value))


def _text(path: Path, problems: list[str]) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        problems.append(f"{path.name} cannot be read ({error})")
        return None


def read_mapping(
    path: Path, parse: Callable[[str], Any], problems: list[str], required: bool = False
) -> dict[str, Any]:
    text = _text(path, problems)
    if text is None:
        if required and not path.exists():
            problems.append(f"{path.name} is missing, so it is not known what was run")
        return {}
    try:
        value = clean_tree(parse(text))
    except (ValueError, RecursionError) as error:  # both TOML and JSON errors are ValueErrors
        why = "it is nested too deeply" if isinstance(error, RecursionError) else error
        problems.append(f"{path.name} is damaged ({why})")
        return {}
    if not isinstance(value, dict):
        problems.append(f"{path.name} is damaged (it holds a {type(value).__name__}, not a table)")
        return {}
    return value


def _rows(path: Path, done: bool, problems: list[str]) -> list[tuple[int, list[str]]]:
    """Line number and cells. A last line without a line end was cut by a kill, so it does not count."""
    text = _text(path, problems)
    if text is None:
        return []
    lines = text.splitlines()
    if text and not text.endswith("\n") and not done:
        lines.pop()
    found: list[tuple[int, list[str]]] = []
    try:
        found.extend((line, cells) for line, cells in enumerate(csv.reader(lines), start=1) if cells)
    except csv.Error as error:
        problems.append(f"{path.name} is damaged ({error})")
    return found


def read_matrix(path: Path, done: bool, problems: list[str]) -> np.ndarray:
    rows = _rows(path, done, problems)
    if not rows:
        if done and path.exists():
            problems.append("accuracy.csv is empty")
        elif done:
            problems.append("accuracy.csv is missing")
        return np.empty((0, 0))
    header = rows[0][1]
    T = len(header) - 1
    if T < 1 or header != ["task", *map(str, range(T))]:
        problems.append("accuracy.csv is damaged (its first line is not task,0,1,2,...)")
        return np.empty((0, 0))
    if T > MOST_TASKS:
        problems.append(f"accuracy.csv is damaged (it has {T} tasks; a run has at most {MOST_TASKS})")
        return np.empty((0, 0))
    matrix = np.full((T, T), math.nan)
    for line, cells in rows[1:]:
        try:
            task, values = int(cells[0]), [float(cell) if cell else math.nan for cell in cells[1:]]
            if len(values) != T or not 0 <= task < T:
                raise ValueError(f"{T + 1} entries are expected, the first a task from 0 to {T - 1}")
            if any(not 0 <= value <= 1 for value in values if not math.isnan(value)):
                raise ValueError("an accuracy is a fraction from 0 to 1")
        except ValueError as error:
            problems.append(f"accuracy.csv line {line} is damaged ({error})")
            continue
        if not np.isnan(matrix[task]).all() and not np.array_equal(matrix[task], values, equal_nan=True):
            problems.append(f"accuracy.csv line {line} contradicts an earlier line for task {task}; the later counts")
        matrix[task] = values
    return matrix


def read_records(
    path: Path, fields: tuple[str, ...], build: Callable[[list[str]], Any], done: bool, problems: list[str]
) -> list[Any]:
    rows = _rows(path, done, problems)
    if not rows:
        return []
    if tuple(rows[0][1]) != fields:
        problems.append(f"{path.name} is damaged (its first line is not {','.join(fields)})")
        return []
    records = []
    for line, cells in rows[1:]:
        try:
            if len(cells) != len(fields):
                raise ValueError(f"{len(fields)} entries are expected, there are {len(cells)}")
            records.append(build(cells))
        except ValueError as error:
            problems.append(f"{path.name} line {line} is damaged ({error})")
    return records


def to_drift_row(cells: list[str]) -> DriftRow:
    unmoved, weights = float(cells[3]), int(cells[2])
    if not 0 <= unmoved <= 1:
        raise ValueError(f"unmoved is {unmoved:g}; it is a share from 0 to 1")
    if not 0 <= weights < 1 << 62:
        raise ValueError(f"a layer of {weights} weights")
    numbers = (float(cell or "nan") for cell in cells[4:])
    return DriftRow(_task(cells[0]), clean(cells[1]), weights, unmoved, *numbers)


def to_curve_point(cells: list[str]) -> CurvePoint:
    task, epoch, step = _task(cells[0]), int(cells[1]), int(cells[2])
    return CurvePoint(task, epoch, step, *(float(cell or "nan") for cell in cells[3:]))


def _task(cell: str) -> int:
    task = int(cell)
    if not 0 <= task < MOST_TASKS:
        raise ValueError(f"task {task}; tasks count from 0 and a run has at most {MOST_TASKS}")
    return task


def contradictions(matrix: np.ndarray, result: Mapping[str, Any], problems: list[str]) -> None:
    """A result that its own matrix contradicts was edited, or belongs to another run."""
    if not matrix.size:
        return
    for name in ("average_accuracy", "backward_transfer", "forgetting", "incremental_accuracy"):
        said, found = number(result.get(name)), getattr(metrics, name)(matrix)
        if not math.isnan(said) and not math.isclose(said, found, abs_tol=1e-6):
            problems.append(
                f"result.json says {name} is {said:.6g} but accuracy.csv gives {found:.6g}; the latter counts"
            )


def number(value: Any) -> float:
    """A finite number, or NaN."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return math.nan
    try:
        return float(value) if math.isfinite(value) else math.nan
    except OverflowError:  # a whole number with hundreds of digits
        return math.nan
