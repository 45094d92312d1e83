"""Reading run directories and packs: tables, figures and the page are made from this.

A run may be unfinished, killed in the middle of a line or damaged. It is read as far as possible. ``Run.problems`` has
a sentence for everything that is wrong; nothing is dropped silently.
"""

from __future__ import annotations

import json
import math
import os
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from drcl.lab.common.words import clean, reason
from drcl.lab.runs import digests, metrics, pack
from drcl.lab.runs.files import (
    CURVE_FIELDS,
    DRIFT_FIELDS,
    RECORDS,
    contradictions,
    number,
    read_mapping,
    read_matrix,
    read_records,
    record_fields,
    to_curve_point,
    to_drift_row,
    to_record,
)
from drcl.lab.training.rows import CurvePoint, DriftRow, Record

# A directory with any of these is a run; a run killed early may have only the first.
MARKS = ("config.toml", "accuracy.csv", "result.json", digests.FILE)


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
    damage: tuple[str, ...] = ()  # files that differ from their stored digests
    records: dict[str, tuple[Any, ...]] = field(default_factory=dict)  # of the smaller tables, by their name
    sealed: bool = False  # whether digests are stored, which show damage

    @classmethod
    def read(cls, path: str | Path) -> Run:
        """Read ``path`` as far as possible; raises only if the directory does not exist."""
        path = Path(path)
        if not path.is_dir():
            raise FileNotFoundError(f"{path} is not a directory; give a run's directory, such as runs/<name>")
        damage = digests.check(path)
        problems = list(damage)
        config = read_mapping(path / "config.toml", tomllib.loads, problems, required=True)
        environment = read_mapping(path / "environment.json", json.loads, problems)
        cost = read_mapping(path / "cost.json", json.loads, problems)
        result = read_mapping(path / "result.json", json.loads, problems)
        done = result.get("finished") is True
        if done and not cost and not (path / "cost.json").exists():
            problems.append("cost.json is missing, so its time and memory are not known")
        for name in ("benchmark", "method"):
            if (path / "config.toml").exists() and not isinstance(config.get(name), str):
                problems.append(f"config.toml does not say which {name} was run")
        matrix = read_matrix(path / "accuracy.csv", done, problems)
        drift = read_records(path / "drift.csv", DRIFT_FIELDS, to_drift_row, done, problems)
        drift = list({(row.task, row.layer): row for row in drift}.values())  # a resumed run may repeat its last task
        curve = tuple(read_records(path / "curve.csv", CURVE_FIELDS, to_curve_point, done, problems))
        records: dict[str, tuple[Record, ...]] = {}
        for name, kind in RECORDS.items():
            found = read_records(path / f"{name}.csv", record_fields(kind), to_record(kind), done, problems)
            records[name] = tuple(found)
        if done:
            contradictions(matrix, result, problems)
        told = tuple(map(clean, problems))
        broken = told[: len(damage)]
        sealed = digests.stored(path)
        return cls(path, config, environment, cost, result, matrix, tuple(drift), curve, told, broken, records, sealed)

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
        """Whether it is known what was run. Otherwise the run can be listed, but not compared."""
        return bool(self.benchmark and self.method)

    def options(self, table: str) -> dict[str, Any]:
        value = self.config.get(table)
        return value if isinstance(value, dict) else {}

    @property
    def machine(self) -> str:
        """Where it ran, and with how many threads: only times of the same machine compare."""
        return str((self.environment.get("machine"), self.environment.get("threads")))

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
        """Whether the run says it is finished, its matrix has its last row, and no file is damaged."""
        return self.result.get("finished") is True and not self.broken and self.readable

    @property
    def broken(self) -> tuple[str, ...]:
        """Why a finished run does not count."""
        complete = self.matrix.size > 0 and not np.isnan(self.matrix[-1]).any()
        if self.damage or complete or self.result.get("finished") is not True:
            return self.damage
        return ("its accuracy matrix is incomplete",)

    @property
    def status(self) -> str:
        """One phrase for a list of runs."""
        if self.finished:
            return "finished"
        if self.broken:
            return f"broken: {'; '.join(self.broken)}"
        if not self.readable:
            return "unreadable"
        if isinstance(self.result.get("error"), str):
            return f"failed: {self.result['error']}"
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

    def per_task(self, name: str) -> list[float]:
        """One value per task, from ``per_task`` in ``result.json``; NaN where nothing was measured."""
        kept = self.result.get("per_task")
        values = kept.get(name) if isinstance(kept, dict) else None
        found = [number(v) for v in values] if isinstance(values, list) else []
        return found if len(found) == self.tasks else [math.nan] * self.tasks

    def unmoved_by_task(self) -> dict[int, float]:
        """Share of all shared weights that each task left exactly unchanged."""
        stayed: dict[int, float] = {}
        weights: dict[int, int] = {}
        for row in self.drift:
            stayed[row.task] = stayed.get(row.task, 0.0) + row.unmoved * row.weights
            weights[row.task] = weights.get(row.task, 0) + row.weights
        return {task: stayed[task] / n for task, n in sorted(weights.items()) if n}


def find(paths: Iterable[str | Path]) -> list[Run]:
    """Every run at or below ``paths``, in directories or packs, each once, by benchmark, method, seed and path."""
    found: dict[Path, Path] = {}
    packs: dict[Path, Path] = {}
    for given in paths:
        path = Path(given)
        if not path.exists():
            raise FileNotFoundError(f"{path} does not exist; give run directories or a directory that holds some")
        if path.is_file() and path.name in MARKS:
            path = path.parent  # shell completion often ends at the file
        directories, files = _places(path)
        for directory in directories:
            found.setdefault(directory.resolve(), directory)
        for file in files:
            packs.setdefault(file.resolve(), file)
    runs = [_read(path) for path in found.values()]
    runs += [run for path in packs.values() for run in _packed(path)]
    return sorted(runs, key=lambda run: (run.benchmark, run.method, run.seed or 0, str(run.path)))


def _read(path: Path) -> Run:
    """Read one run so that no damage in it can spoil a table of many."""
    try:
        return Run.read(path)
    except Exception as error:
        return Run(path, problems=(f"cannot be read ({clean(reason(error))})",))


def _packed(path: Path) -> list[Run]:
    """The runs of a pack. The path of each is the path of the pack followed by the run's name."""
    runs = []
    with TemporaryDirectory() as folder:
        for number, packed in enumerate(pack.read(path)):
            run = _read(packed.write(Path(folder) / str(number)))
            told = (clean(packed.damage),) if packed.damage else ()
            damage, problems = (*told, *run.damage), (*told, *run.problems)
            runs.append(replace(run, path=path / packed.name, damage=damage, problems=problems, sealed=True))
    return runs


def _places(top: Path) -> tuple[list[Path], list[Path]]:
    """Run directories and packs at or below `top`."""
    if top.is_file():
        return [], [top] if pack.is_pack(top) else []
    found, packs = [], []
    for folder, below, files in os.walk(top):
        if any(mark in files for mark in MARKS):
            found.append(Path(folder))
            below.clear()  # a checkpoint inside a run is not another run
            continue
        packs += [path for path in (Path(folder) / name for name in sorted(files)) if pack.is_pack(path)]
        below[:] = sorted(name for name in below if not name.startswith("."))
    return found, packs


# ---- measures computed from the files they belong to


def _of_matrix(measure: Callable[[Any], float]) -> Callable[[Run], float]:
    def compute(run: Run) -> float:
        return measure(run.matrix) if run.matrix.size else metrics.Undefined("no task was finished")

    return compute


def _unmoved(run: Run) -> float:
    shares = [share for task, share in run.unmoved_by_task().items() if task >= 1]  # the first starts at random weights
    return float(np.mean(shares)) if shares else metrics.Undefined("drift from the second task on was not recorded")


def _directions_held(run: Run) -> float:
    shares = [share for share in run.per_task("directions_held")[1:] if not math.isnan(share)]
    return float(np.mean(shares)) if shares else metrics.Undefined("it holds single weights, or it was not recorded")


def _learning_seconds(run: Run) -> float:
    """Seconds of training and consolidation, without evaluation, which is the same for every method."""
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
    "directions_held": _directions_held,
    "learning_seconds": _learning_seconds,
    "gradient_evaluations": _of_cost("gradient_evaluations"),
    "state_bytes": _of_cost("state_bytes"),
    "peak_bytes": _peak_bytes,
}
