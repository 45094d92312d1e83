"""Run directories with chosen settings and numbers, for rules and tables to read."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import tomli_w
from tests.lab.report.fake_runs import write_matrix

from drcl.lab.runs.read import Run

ALEXNET = {"model": {"kind": "alexnet", "width": 0.5}, "epochs": 3}
HEADLINE = {"model": {"kind": "alexnet", "width": 0.5}, "epochs": 12, "schedule": "constant", "momentum": 0.0}
RESNET = {"model": {"kind": "resnet18-reduced"}, "epochs": 3}
PRINTED = {
    "prox": "l1",
    "splitting": "douglas-rachford",
    "iterations": 5,
    "memory": "latest",
    "strength": 10.0,
    "momentum": 0.0,
}


def square(accuracy: float, transfer: float = 0.0, tasks: int = 2) -> np.ndarray:
    """A matrix with this average accuracy and backward transfer: all tasks end alike but for the last."""
    R = np.full((tasks, tasks), math.nan)
    for i in range(tasks):
        for j in range(i + 1):
            R[i, j] = accuracy - (transfer if i == j and j < tasks - 1 else 0.0)
    return R


def record(
    root: Path,
    benchmark: str,
    method: str,
    seed: int = 0,
    accuracy: float = 0.5,
    transfer: float = 0.0,
    *,
    of_benchmark: dict | None = None,
    of_method: dict | None = None,
    training: dict | None = None,
    R: np.ndarray | None = None,
    curve: list[tuple[int, float]] = (),
    cost: dict | None = None,
    **result: object,
) -> Run:
    """Write one finished run and read it back. What else is given goes into ``result.json``."""
    R = square(accuracy, transfer) if R is None else R
    path = root / f"{benchmark}-{method}-seed{seed}-{len(list(root.glob('*'))) if root.is_dir() else 0}"
    path.mkdir(parents=True)
    config = {
        "benchmark": benchmark,
        "method": method,
        "seed": seed,
        "benchmark_options": of_benchmark or {},
        "method_options": of_method or {},
        "training": training or {},
    }
    (path / "config.toml").write_text(tomli_w.dumps(config), encoding="utf-8")
    write_matrix(path / "accuracy.csv", R)
    told = {"training": {"seconds": 10.0}, "consolidation": {"seconds": 0.0}, "parameters": 100} | (cost or {})
    (path / "cost.json").write_text(json.dumps(told), encoding="utf-8")
    (path / "result.json").write_text(json.dumps({"finished": True, **result}), encoding="utf-8")
    if curve:
        lines = ["task,epoch,step,loss,accuracy", *(f"{task},0,{k},{loss}," for k, (task, loss) in enumerate(curve))]
        (path / "curve.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return Run.read(path)
