"""The files a run leaves while it goes on, written so that a kill at any moment can be put right.

Rows are appended and flushed at once, for whoever looks on; a checkpoint knows how long each file was when it was
taken, and on resume what came later is cut off and written again.
"""

from __future__ import annotations

import csv
import io
import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from drcl.lab.common import parallel
from drcl.lab.runs.checkpoint import Checkpoints, replace_whole
from drcl.lab.runs.files import CURVE_FIELDS, DRIFT_FIELDS
from drcl.lab.training.events import Event, Logger, Watcher
from drcl.lab.training.rows import CurvePoint, DriftRow


class Table:
    """A CSV file that grows."""

    def __init__(self, path: Path, header: Sequence[object]) -> None:
        self.path, self.header = path, header

    def append(self, rows: Sequence[Sequence[object]]) -> None:
        fresh = not self.path.exists() or self.path.stat().st_size == 0
        text = io.StringIO()
        out = csv.writer(text, lineterminator="\n")
        out.writerows([self.header, *rows] if fresh else rows)
        with self.path.open("a", encoding="utf-8", newline="") as file:
            file.write(text.getvalue())

    def mark(self) -> int:
        """Its length, once the disk has it all."""
        if not self.path.exists():
            return 0
        with self.path.open("rb+") as file:
            os.fsync(file.fileno())
        return self.path.stat().st_size

    def cut(self, length: int) -> bool:
        """Back to that length; False if it is shorter already."""
        if not self.path.exists():
            return length == 0
        if self.path.stat().st_size < length:
            return False
        os.truncate(self.path, length)
        return True


class Records(Watcher):
    """A watcher that writes a run's directory. Only the first of several processes has anything to write."""

    def __init__(
        self,
        directory: Path,
        tasks: int,
        progress: Callable[[Event], None] | None,
        loggers: Sequence[Logger],
        tell: Callable[[str], None],
    ) -> None:
        self.writes = parallel.world().rank == 0
        self.progress, self.loggers, self.tell = progress, loggers, tell
        self.checkpoints = Checkpoints(directory / "checkpoint", tell)
        self.accuracy = Table(directory / "accuracy.csv", ["task", *range(tasks)])
        self.drifts = Table(directory / "drift.csv", DRIFT_FIELDS)
        self.curves = Table(directory / "curve.csv", CURVE_FIELDS)
        self._points: list[list[object]] = []
        self._flushed = 0.0

    @property
    def tables(self) -> dict[str, Table]:
        return {"accuracy": self.accuracy, "drift": self.drifts, "curve": self.curves}

    # ---- what the learner says

    def event(self, event: Event) -> None:
        if self.writes and self.progress is not None:
            self.progress(event)

    def log(self, values: dict[str, float], step: int) -> None:
        if self.writes:
            for logger in self.loggers:
                logger.log(values, step)

    def curve(self, point: CurvePoint) -> None:
        if self.writes:
            self._points.append([point.task, point.epoch, point.step, _cell(point.loss), _cell(point.accuracy)])
            # Opening a file a hundred times a second would cost more than some networks' steps.
            if time.monotonic() - self._flushed > 1:
                self._flush()

    def row(self, task: int, accuracies: list[float]) -> None:
        if self.writes:
            self._flush()
            self.accuracy.append([[task, *map(_cell, accuracies)]])

    def drift(self, rows: list[DriftRow]) -> None:
        if self.writes and rows:
            changes = ("unmoved", "mean_change", "largest_change", "relative_change")
            self.drifts.append(
                [[r.task, r.layer, r.weights, *(_cell(getattr(r, key)) for key in changes)] for r in rows]
            )

    def save(self, state: Callable[[], dict[str, Any]]) -> None:
        content = state()  # on every process: they exchange what only they know
        if self.writes:
            self._flush()
            marks = {name: table.mark() for name, table in self.tables.items()}
            self.checkpoints.save({"learner": content, "files": marks})

    # ---- going on

    def load(self, device: Any) -> dict[str, Any] | None:
        """The learner's state at the last good checkpoint, with the files as they were then."""
        saved = self.checkpoints.load(device)
        if not self.writes:
            return None if saved is None else saved["learner"]
        if saved is None:
            for table in self.tables.values():
                table.path.unlink(missing_ok=True)
            return None
        for name, table in self.tables.items():
            if not table.cut(saved["files"][name]):
                self.tell(f"{table.path} has lost lines that the checkpoint knows of; what is left of it is kept")
        self._rewrite(saved["learner"]["matrix"])
        return saved["learner"]

    def _rewrite(self, matrix: list[list[float]]) -> None:
        """The accuracy matrix is in the checkpoint, so its file can always be made good."""
        text = io.StringIO()
        out = csv.writer(text, lineterminator="\n")
        out.writerow(self.accuracy.header)
        known = [(task, row) for task, row in enumerate(matrix) if not all(math.isnan(v) for v in row)]
        out.writerows([task, *map(_cell, row)] for task, row in known)
        if known:
            replace_whole(self.accuracy.path, text.getvalue().encode())

    def _flush(self) -> None:
        self._flushed = time.monotonic()
        if self._points:
            points, self._points = self._points, []
            self.curves.append(points)


def _cell(value: float) -> str:
    return "" if math.isnan(value) else repr(float(value))
