"""Run directories as a real run would leave them, with plausible numbers and no training behind them."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import numpy as np
import tomli_w

from drcl.lab.runs import metrics

# learned: accuracy of a task when it is new; kept: share of it that survives each later task;
# moves: relative change by a task; unmoved: share of weights left alone; time: multiple of SGD's
METHODS = {
    "sgd": {"moves": 0.42, "learned": 0.97, "kept": 0.80, "unmoved": 0.0, "time": 1.0, "state": 0},
    "ewc": {"moves": 0.16, "learned": 0.95, "kept": 0.93, "unmoved": 0.0, "time": 1.21, "state": 281_128},
    "drcl": {"moves": 0.3, "learned": 0.955, "kept": 0.988, "unmoved": 0.81, "time": 1.42, "state": 562_256},
    "joint": {"moves": 0.9, "learned": 0.975, "kept": 1.0, "unmoved": 0.0, "time": 4.4, "state": 0},
}
LAYERS = {"hidden.0.weight": 8192, "hidden.0.bias": 128, "hidden.1.weight": 16384, "hidden.1.bias": 128}
CHANCE = 0.1


def matrix(method: str, tasks: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng([seed, len(method), tasks])
    told = METHODS[method]
    R = np.full((tasks, tasks), math.nan)
    learned = np.clip(told["learned"] + rng.normal(0, 0.012) + rng.normal(0, 0.006, tasks), 0, 1)
    kept = np.clip(told["kept"] + rng.normal(0, 0.1 * (1 - told["kept"])), 0, 1)
    for i in range(tasks):
        for j in range(i + 1):
            faded = CHANCE + (learned[j] - CHANCE) * kept ** (i - j)
            R[i, j] = round(float(np.clip(faded + (rng.normal(0, 0.006) if i > j else 0), 0, 1)), 4)
    if method == "joint":
        R[:-1] = math.nan  # it is trained once, on everything
    return R


def write_matrix(path: Path, R: np.ndarray, rows: int | None = None) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(["task", *range(len(R))])
        for i, row in enumerate(R[:rows]):
            if not np.isnan(row).all():
                out.writerow([i, *("" if math.isnan(v) else repr(float(v)) for v in row)])


def write_run(
    root: Path,
    method: str = "drcl",
    seed: int = 0,
    *,
    tasks: int = 8,
    benchmark: str = "digits-permuted",
    name: str | None = None,
    finished: bool = True,
    done: int | None = None,
    R: np.ndarray | None = None,
    options: dict | None = None,
    training: dict | None = None,
    seconds: float | None = None,
) -> Path:
    """Write one run below ``root`` and return its directory; with fewer tasks ``done`` it is unfinished."""
    rng = np.random.default_rng([7, seed, len(method)])
    told = METHODS.get(method, METHODS["ewc"])
    path = root / (name or f"{benchmark}-{method}-{seed}")
    path.mkdir(parents=True)
    if R is None:
        R = matrix(method if method in METHODS else "ewc", tasks, seed)
    tasks = len(R)
    done = tasks if done is None else done
    config = {
        "benchmark": benchmark,
        "method": method,
        "seed": seed,
        "benchmark_options": {"tasks": tasks},
        "method_options": {"lr": 0.05, "momentum": 0.9} | ({"strength": 10.0} if method == "drcl" else {}),
        "training": {"epochs": 20, "batch_size": 64},
    }
    config["method_options"] |= options or {}
    config["training"] |= training or {}
    (path / "config.toml").write_text(tomli_w.dumps(config), encoding="utf-8")
    environment = {
        "versions": {"drcl": "0.1.0", "python": "3.11.2", "torch": "2.13.0", "numpy": "2.4.6"},
        "git": {"commit": "0123456789abcdef0123456789abcdef01234567", "dirty": False},
        "machine": {"system": "Linux", "processor": "x86_64", "cores": 2},
        "threads": 1,
    }
    (path / "environment.json").write_text(json.dumps(environment, indent=2), encoding="utf-8")
    write_matrix(path / "accuracy.csv", R, done)
    _write_drift(path / "drift.csv", told, done if method != "joint" else 0, rng)
    _write_curve(path / "curve.csv", done, rng)
    if not (finished and done == tasks):
        return path
    seconds = 21.0 * told["time"] * float(1 + rng.normal(0, 0.02)) if seconds is None else seconds
    cost = {
        "training": {"seconds": seconds * 0.95, "peak_bytes": 61_000_000},
        "consolidation": {"seconds": seconds * 0.05, "peak_bytes": 64_000_000},
        "evaluation": {"seconds": 1.3, "peak_bytes": 40_000_000},
        "gradient_evaluations": int(3680 * tasks + (1000 if told["state"] else 0) * tasks),
        "state_bytes": told["state"],
        "parameters": 26_122,
        "per_task_seconds": [seconds / tasks] * tasks,
    }
    (path / "cost.json").write_text(json.dumps(cost, indent=2), encoding="utf-8")
    summary = metrics.summary(
        R,
        stiffness=1.25,
        effective_stability=told["unmoved"],
        residual=None,
        after_one_epoch_accuracy=None,
        seconds=seconds + 1.3,
        state_bytes=told["state"],
        unmoved=told["unmoved"],
    )
    grid = [[None if math.isnan(v) else float(v) for v in row] for row in R]
    result = summary.as_json() | {"accuracy_matrix": grid, "finished": True}
    (path / "result.json").write_text(json.dumps(result, indent=2, allow_nan=False), encoding="utf-8")
    return path


def _write_drift(path: Path, told: dict, done: int, rng: np.random.Generator) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(["task", "layer", "weights", "unmoved", "mean_change", "largest_change", "relative_change"])
        for task in range(done):
            for depth, (layer, weights) in enumerate(LAYERS.items()):
                share = 0.0
                if task and told["unmoved"]:
                    share = min(1.0, told["unmoved"] + 0.02 * task - 0.05 * depth + abs(rng.normal(0, 0.02)))
                change = (1 - share) * told["moves"] * (0.5 + 0.5 * 0.8**task) * (1 + 0.1 * rng.normal())
                numbers = (repr(float(value)) for value in (share, 0.06 * change, 4 * change, change))
                out.writerow([task, layer, weights, *numbers])


def _write_curve(path: Path, done: int, rng: np.random.Generator) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(["task", "epoch", "step", "loss", "accuracy"])
        for task in range(done):
            for epoch in range(3):
                accuracy = "" if epoch == 1 else repr(float(1 - 0.4 ** (epoch + 1)))
                out.writerow([task, epoch, 184 * (epoch + 1), repr(float(2.3 * 0.4**epoch)), accuracy])


def write_runs(root: Path, methods: tuple[str, ...] = ("sgd", "ewc", "drcl"), seeds: int = 2, tasks: int = 8) -> Path:
    """Three methods on two seeds and eight tasks, unless told otherwise."""
    for method in methods:
        for seed in range(seeds):
            write_run(root, method, seed, tasks=tasks)
    return root


# Two runs of three tasks whose measures are easily worked out by hand.
R0 = np.array([[0.9, math.nan, math.nan], [0.7, 0.8, math.nan], [0.5, 0.6, 1.0]])
R1 = np.array([[0.7, math.nan, math.nan], [0.7, 0.8, math.nan], [0.5, 0.6, 1.0]])


def final(first: float, last: float, learned: float = 0.9) -> np.ndarray:
    """The matrix of two tasks that ends with these accuracies."""
    return np.array([[learned, math.nan], [first, last]])
