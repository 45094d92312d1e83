"""Run directories with the records that the paper's figures are drawn from; the numbers are made up by simple rules."""

from __future__ import annotations

import json
from pathlib import Path

from tests.lab.report.fake_runs import METHODS, write_run

from drcl.lab.runs.files import record_cells, record_fields
from drcl.lab.runs.read import Run, find
from drcl.lab.runs.write import Table
from drcl.lab.training.changes import BINS
from drcl.lab.training.rows import ChangeRow, IterationRow, LossPoint, StepRow, UpdateRow


def record(path: Path, tasks: int, unmoved: float, iterations: int = 1, method: str = "drcl") -> None:
    """Add the smaller tables and the values per task to a run that is there."""
    own = method.startswith("drcl")
    rows: dict[str, list] = {"losses": [], "steps": [], "iterations": [], "updates": [], "changes": []}
    for task in range(tasks):
        rows["losses"] += [LossPoint(task, e, 10 * e, 0.1 + 0.1 * e * task, 2.0 / (1 + e)) for e in range(3)]
        split = own and task > 0
        for step in (5, 15, 25):
            last = (1.0 / step, float(iterations)) if split else (float("nan"), float("nan"))
            rows["steps"].append(StepRow(task, 0, step, 0.1, 0.1, 0.05 if split else 0.1, unmoved, *last))
        if split and iterations > 1:
            rows["iterations"] += [IterationRow(task, k + 1, 0.5**k) for k in range(iterations)]
        rows["updates"] += [UpdateRow(task, w, 0.01 * (w - 2), 0.01 * (w - 2) if w > 2 else 0.0) for w in range(6)]
        held = int(100 * unmoved)
        counts = [0] * BINS
        counts[9], counts[17] = (100 - held) // 2, 100 - held - (100 - held) // 2
        rows["changes"] += [ChangeRow(task, layer, 100, held, tuple(counts)) for layer in ("fc1", "fc2")]
    kinds = {"losses": LossPoint, "steps": StepRow, "iterations": IterationRow, "updates": UpdateRow}
    kinds["changes"] = ChangeRow
    for name, found in rows.items():
        if found:
            Table(path / f"{name}.csv", record_fields(kinds[name])).append([record_cells(row) for row in found])
    result = json.loads((path / "result.json").read_text())
    result["per_task"] = {
        "step_norm": [0.1 / (task + 1) for task in range(tasks)],
        "still": [unmoved] * tasks,
        "after_one_epoch_accuracy": [0.9 - 0.01 * task for task in range(tasks)],
    }
    (path / "result.json").write_text(json.dumps(result))


def recorded(
    root: Path, methods: tuple[str, ...] = ("sgd", "ewc", "drcl"), tasks: int = 5, seeds: int = 2
) -> list[Run]:
    """Runs of these methods with everything recorded."""
    for method in methods:
        for seed in range(seeds):
            path = write_run(root, method, seed, tasks=tasks)
            record(path, tasks, METHODS[method]["unmoved"], method=method)
    return find([root])


def bare(root: Path, methods: tuple[str, ...] = ("sgd", "drcl"), tasks: int = 5) -> list[Run]:
    """Runs as older versions left them: without the smaller tables."""
    for method in methods:
        write_run(root, method, 0, tasks=tasks)
    return find([root])


def words(figure) -> str:
    """All that can be read on the axes of a figure."""
    found = []
    for ax in figure.axes:
        found += [ax.get_xlabel(), ax.get_ylabel(), ax.get_title(loc="left"), *(t.get_text() for t in ax.texts)]
        found += [t.get_text() for t in ax.get_xticklabels() + ax.get_yticklabels()]
    found += [t.get_text() for legend in figure.legends for t in legend.get_texts()]
    return " | ".join(found)


def long_lines(ax) -> list:
    """Lines with more than two points: the series, without rules and levels."""
    return [line for line in ax.get_lines() if len(line.get_xdata()) > 2]
