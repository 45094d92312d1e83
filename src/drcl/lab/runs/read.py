"""The read side of a run's directory: what tables, figures and the page are made from.

A run may be unfinished, killed in the middle of a line or damaged. It is read as far as it goes, and what is
wrong with it is kept as sentences in ``Run.problems``; nothing is dropped without a word.
"""

from __future__ import annotations

import json
import math
import os
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from drcl.lab.runs import metrics
from drcl.lab.runs.files import (
    CURVE_FIELDS,
    DRIFT_FIELDS,
    contradictions,
    number,
    read_mapping,
    read_matrix,
    read_records,
    to_curve_point,
    to_drift_row,
)
from drcl.lab.training.rows import CurvePoint, DriftRow

# Any of these makes a directory a run's directory; a run killed early may have the first one only.
MARKS = ("config.toml", "accuracy.csv", "result.json")


@dataclass(frozen=True)
class Run:
    """One run as found on disk."""

    path: Path
    config: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    cost: dict[str, Any] = field(default_factory=dict)
    result: dict[str, Any] = field(default_factory=dict)
    matrix: np.ndarray = field(default_factory=lambda: np.empty((0, 0)))
    drift: tuple[DriftRow, ...] = ()
    curve: tuple[CurvePoint, ...] = ()
    problems: tuple[str, ...] = ()

    @classmethod
    def read(cls, path: str | Path) -> Run:
        """Read ``path`` as far as it can be read; only a directory that is not there raises."""
        path = Path(path)
        if not path.is_dir():
            raise FileNotFoundError(f"{path} is not a directory; give a run's directory, such as runs/<name>")
        problems: list[str] = []
        config = read_mapping(path / "config.toml", tomllib.loads, problems, required=True)
        environment = read_mapping(path / "environment.json", json.loads, problems)
        cost = read_mapping(path / "cost.json", json.loads, problems)
        result = read_mapping(path / "result.json", json.loads, problems)
        done = result.get("finished") is True
        if done and not cost and not (path / "cost.json").exists():
            problems.append("cost.json is missing, so its time and memory are not known")
        for name in ("benchmark", "method"):
            if config and not isinstance(config.get(name), str):
                problems.append(f"config.toml does not say which {name} was run")
        matrix = read_matrix(path / "accuracy.csv", done, problems)
        drift = read_records(path / "drift.csv", DRIFT_FIELDS, to_drift_row, done, problems)
        drift = list({(row.task, row.layer): row for row in drift}.values())  # a resumed run may repeat its last task
        curve = tuple(read_records(path / "curve.csv", CURVE_FIELDS, to_curve_point, done, problems))
        if done:
            contradictions(matrix, result, problems)
        return cls(path, config, environment, cost, result, matrix, tuple(drift), curve, tuple(problems))

    # ---- who it is

    @property
    def benchmark(self) -> str:
        value = self.config.get("benchmark")
        return value if isinstance(value, str) else ""

    @property
    def method(self) -> str:
        value = self.config.get("method")
        return value if isinstance(value, str) else ""

    @property
    def seed(self) -> int | None:
        value = self.config.get("seed")
        return value if isinstance(value, int) else None

    @property
    def readable(self) -> bool:
        """Whether it is known what was run; without that it can be listed, not compared."""
        return bool(self.benchmark and self.method)

    def options(self, table: str) -> dict[str, Any]:
        value = self.config.get(table)
        return value if isinstance(value, dict) else {}

    # ---- how far it came

    @property
    def tasks(self) -> int:
        return self.matrix.shape[1]

    @property
    def tasks_done(self) -> int:
        if not self.matrix.size:
            return 0
        rows = np.flatnonzero(~np.isnan(self.matrix).all(axis=1))
        return int(rows[-1]) + 1 if len(rows) else 0

    @property
    def finished(self) -> bool:
        """Said to be finished, and the last row of the matrix is there to prove it."""
        complete = self.matrix.size > 0 and not np.isnan(self.matrix[-1]).any()
        return self.result.get("finished") is True and complete and self.readable

    @property
    def status(self) -> str:
        """One phrase for a list of runs."""
        if self.finished:
            return "finished"
        if not self.readable:
            return "unreadable"
        if isinstance(self.result.get("error"), str):
            return f"failed: {self.result['error']}"
        if self.result.get("finished") is True:
            return "its accuracy matrix is incomplete"
        if not self.tasks:
            return "unfinished, no task done yet"
        return f"unfinished, {self.tasks_done} of {self.tasks} tasks done"

    # ---- what it measured

    def value(self, name: str) -> float:
        """A measure by its name: of the matrix, the drift or the cost, else what ``result.json`` holds."""
        compute = _COMPUTED.get(name)
        if compute is not None:
            return compute(self)
        value = number(self.result.get(name))
        if math.isnan(value):
            reasons = self.result.get("undefined")
            reason = reasons.get(name) if isinstance(reasons, dict) else None
            return metrics.Undefined(reason if isinstance(reason, str) else "it was not measured")
        return value

    def seconds(self, part: str) -> float:
        """Time spent in ``"training"``, ``"consolidation"`` or ``"evaluation"``; NaN if it is not known."""
        of = self.cost.get(part)
        return number(of.get("seconds")) if isinstance(of, dict) else math.nan

    def unmoved_by_task(self) -> dict[int, float]:
        """Share of all shared weights that each task left exactly where they were."""
        stayed: dict[int, float] = {}
        weights: dict[int, int] = {}
        for row in self.drift:
            stayed[row.task] = stayed.get(row.task, 0.0) + row.unmoved * row.weights
            weights[row.task] = weights.get(row.task, 0) + row.weights
        return {task: stayed[task] / n for task, n in sorted(weights.items()) if n}


def find(paths: Iterable[str | Path]) -> list[Run]:
    """Every run at or below ``paths``, each once, sorted by benchmark, method, seed and path."""
    found: dict[Path, Path] = {}
    for given in paths:
        path = Path(given)
        if not path.exists():
            raise FileNotFoundError(f"{path} does not exist; give run directories or a directory that holds some")
        if path.is_file() and path.name in MARKS:
            path = path.parent  # a shell's completion often ends on the file
        for directory in _run_directories(path):
            found.setdefault(directory.resolve(), directory)
    runs = [Run.read(path) for path in found.values()]
    return sorted(runs, key=lambda run: (run.benchmark, run.method, run.seed or 0, str(run.path)))


def _run_directories(top: Path) -> list[Path]:
    found = []
    for folder, below, files in os.walk(top):
        if any(mark in files for mark in MARKS):
            found.append(Path(folder))
            below.clear()  # a run's own checkpoint is not another run
        below[:] = sorted(name for name in below if not name.startswith("."))
    return found


# ---- measures computed from the files they belong to


def _of_matrix(measure: Callable[[Any], float]) -> Callable[[Run], float]:
    def compute(run: Run) -> float:
        return measure(run.matrix) if run.matrix.size else metrics.Undefined("no task was finished")

    return compute


def _unmoved(run: Run) -> float:
    shares = [share for task, share in run.unmoved_by_task().items() if task >= 1]  # the first task starts from noise
    return float(np.mean(shares)) if shares else metrics.Undefined("drift from the second task on was not recorded")


def _learning_seconds(run: Run) -> float:
    """Training and consolidation; evaluation is left out, it is the same for every method."""
    seconds = run.seconds("training") + run.seconds("consolidation")
    return metrics.Undefined("cost.json does not say how long it took") if math.isnan(seconds) else seconds


def _of_cost(name: str) -> Callable[[Run], float]:
    def compute(run: Run) -> float:
        value = number(run.cost.get(name))
        return metrics.Undefined(f"cost.json does not hold {name}") if math.isnan(value) else value

    return compute


def _peak_bytes(run: Run) -> float:
    parts = [run.cost.get("training"), run.cost.get("consolidation")]
    peaks = [number(part.get("peak_bytes")) for part in parts if isinstance(part, dict)]
    if not peaks or any(math.isnan(peak) for peak in peaks):
        return metrics.Undefined("cost.json does not hold peak_bytes")
    return max(peaks)


_COMPUTED: dict[str, Callable[[Run], float]] = {
    "average_accuracy": _of_matrix(metrics.average_accuracy),
    "backward_transfer": _of_matrix(metrics.backward_transfer),
    "forgetting": _of_matrix(metrics.forgetting),
    "incremental_accuracy": _of_matrix(metrics.incremental_accuracy),
    "learning_accuracy": _of_matrix(metrics.learning_accuracy),
    "unmoved": _unmoved,
    "learning_seconds": _learning_seconds,
    "gradient_evaluations": _of_cost("gradient_evaluations"),
    "state_bytes": _of_cost("state_bytes"),
    "peak_bytes": _peak_bytes,
}
