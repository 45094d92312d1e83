"""The files that a run writes while it trains, in a way that survives a kill at any moment.

Rows are appended and flushed at once, so that they can be read while the run trains. A checkpoint records the length
and the digest of each file. On resume, later rows are cut off and written again, and earlier ones must be unchanged.
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from drcl.lab.common import parallel
from drcl.lab.runs import digests
from drcl.lab.runs.checkpoint import Checkpoints, replace_whole
from drcl.lab.runs.files import CURVE_FIELDS, DRIFT_FIELDS, RECORDS, cell, record_cells, record_fields
from drcl.lab.training.events import Event, Logger, Watcher
from drcl.lab.training.rows import CurvePoint, DriftRow, Record


class Table:
    """A CSV file that grows. Its digest covers what was written, whatever the disk stores."""

    def __init__(self, path: Path, header: Sequence[object]) -> None:
        self.path, self.header = path, header
        self._digest = hashlib.sha256(path.read_bytes() if path.exists() else b"")

    def append(self, rows: Sequence[Sequence[object]]) -> None:
        fresh = not self.path.exists() or self.path.stat().st_size == 0
        data = _csv([self.header, *rows] if fresh else rows)
        with self.path.open("ab") as file:
            file.write(data)
        self._digest.update(data)

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()

    def mark(self) -> dict[str, Any]:
        """Its length and digest, once everything is on the disk."""
        if not self.path.exists():
            return {"length": 0, "sha256": self.digest}
        with self.path.open("rb+") as file:
            os.fsync(file.fileno())
        return {"length": self.path.stat().st_size, "sha256": self.digest}

    def wrong(self, mark: dict[str, Any] | int) -> str:
        """What is wrong with the part of the file that `mark` is about, or nothing. Earlier versions marked the length
        only."""
        length, digest = (mark, None) if isinstance(mark, int) else (mark["length"], mark["sha256"])
        if not self.path.exists():
            return f"{self.path} is missing" if length else ""
        if self.path.stat().st_size < length:
            return f"{self.path} has lost lines"
        if digest is not None and digests.of_file(self.path, length) != digest:
            return f"{self.path} has been changed"
        return ""

    def cut(self, mark: dict[str, Any] | int) -> None:
        """Cut the file back to its state at `mark`; check `wrong` first."""
        length = mark if isinstance(mark, int) else mark["length"]
        if not length:
            self.remove()
            return
        os.truncate(self.path, length)
        self._digest = hashlib.sha256(self.path.read_bytes())

    def replace(self, rows: Sequence[Sequence[object]]) -> None:
        """Replace all rows."""
        data = _csv([self.header, *rows])
        replace_whole(self.path, data)
        self._digest = hashlib.sha256(data)

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
        self._digest = hashlib.sha256()


class Records(Watcher):
    """A watcher that writes a run's directory. Of several processes, only the first one writes."""

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
        self.others = {name: Table(directory / f"{name}.csv", record_fields(kind)) for name, kind in RECORDS.items()}
        self._points: list[list[object]] = []
        self._flushed = 0.0

    @property
    def tables(self) -> dict[str, Table]:
        return {"accuracy": self.accuracy, "drift": self.drifts, "curve": self.curves} | self.others

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
            self._points.append([point.task, point.epoch, point.step, cell(point.loss), cell(point.accuracy)])
            # Opening a file a hundred times a second would cost more than some networks' steps.
            if time.monotonic() - self._flushed > 1:
                self._flush()

    def row(self, task: int, accuracies: list[float]) -> None:
        if self.writes:
            self._flush()
            self.accuracy.append([[task, *map(cell, accuracies)]])

    def drift(self, rows: list[DriftRow]) -> None:
        if self.writes and rows:
            changes = ("unmoved", "mean_change", "largest_change", "relative_change")
            self.drifts.append(
                [[r.task, r.layer, r.weights, *(cell(getattr(r, key)) for key in changes)] for r in rows]
            )

    def records(self, rows: Sequence[Record]) -> None:
        for name, kind in RECORDS.items() if self.writes else ():
            mine = [record_cells(row) for row in rows if isinstance(row, kind)]
            if mine:
                self.others[name].append(mine)

    def save(self, state: Callable[[], dict[str, Any]]) -> None:
        content = state()  # on every process, because they exchange data
        if self.writes:
            self._flush()
            marks = {name: table.mark() for name, table in self.tables.items()}
            self.checkpoints.save({"learner": content, "files": marks})

    # ---- going on

    def load(self, device: Any) -> dict[str, Any] | None:
        """The learner's state at the last good checkpoint, with the files as they were then."""
        if not self.writes:
            saved = self.checkpoints.load(device)
            return None if saved is None else saved["learner"]
        saved = self.checkpoints.load(device, self._unfit)
        if saved is None:
            for table in self.tables.values():
                table.remove()
            return None
        marks = saved["files"]
        for name, table in self._rows().items():
            table.cut(marks.get(name, 0))  # runs of older versions had fewer tables
        # The checkpoint has the matrix, so its file can always be written again.
        why = self.accuracy.wrong(marks["accuracy"])
        if why:
            self.tell(f"{why}; it is written again from the checkpoint")
        matrix = saved["learner"]["matrix"]
        known = [(task, row) for task, row in enumerate(matrix) if not all(math.isnan(v) for v in row)]
        if known:
            self.accuracy.replace([[task, *map(cell, row)] for task, row in known])
        else:
            self.accuracy.remove()
        return saved["learner"]

    def _unfit(self, saved: dict[str, Any]) -> str:
        """Rows that a checkpoint knows of are lost or changed. Only running again can restore them."""
        found = (table.wrong(saved["files"].get(name, 0)) for name, table in self._rows().items())
        return next(filter(None, found), "")

    def _rows(self) -> dict[str, Table]:
        """The tables that no checkpoint contains."""
        return {name: table for name, table in self.tables.items() if table is not self.accuracy}

    def _flush(self) -> None:
        self._flushed = time.monotonic()
        if self._points:
            points, self._points = self._points, []
            self.curves.append(points)


def _csv(rows: Sequence[Sequence[object]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()
