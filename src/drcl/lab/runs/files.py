"""Files of a run's directory, which may be cut short or damaged: read as far as they go."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from drcl.lab.runs import metrics
from drcl.lab.training.rows import CurvePoint, DriftRow

DRIFT_FIELDS = tuple(f.name for f in fields(DriftRow))
CURVE_FIELDS = tuple(f.name for f in fields(CurvePoint))


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
        value = parse(text)
    except ValueError as error:  # both TOML and JSON errors are ValueErrors
        problems.append(f"{path.name} is damaged ({error})")
        return {}
    if not isinstance(value, dict):
        problems.append(f"{path.name} is damaged (it holds a {type(value).__name__}, not a table)")
        return {}
    return value


def _rows(path: Path, done: bool, problems: list[str]) -> list[tuple[int, list[str]]]:
    """Line number and cells. A last line without its end was cut by a kill: it is not a value yet."""
    text = _text(path, problems)
    if text is None:
        return []
    lines = text.splitlines()
    if text and not text.endswith("\n") and not done:
        lines.pop()
    return [(line, cells) for line, cells in enumerate(csv.reader(lines), start=1) if cells]


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
    unmoved = float(cells[3])
    if not 0 <= unmoved <= 1:
        raise ValueError(f"unmoved is {unmoved:g}; it is a share from 0 to 1")
    return DriftRow(int(cells[0]), cells[1], int(cells[2]), unmoved, *(float(cell or "nan") for cell in cells[4:]))


def to_curve_point(cells: list[str]) -> CurvePoint:
    task, epoch, step = (int(cell) for cell in cells[:3])
    return CurvePoint(task, epoch, step, *(float(cell or "nan") for cell in cells[3:]))


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
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
