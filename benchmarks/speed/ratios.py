"""Measured ratios in results/speed/ratios.csv, and the tables of docs/speed.md made of them.

The scripts of this folder print what they measure; with `--record` they keep it here too, in place of what was there.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

PATH = Path(__file__).resolve().parents[2] / "results/speed/ratios.csv"
COLUMNS = ("table", "case", "measure", "value")


class Layout(NamedTuple):
    """How a table is written: its first head, its columns by measure, its rows by case."""

    head: str
    measures: dict[str, str]
    cases: dict[str, str]


LAYOUTS = {
    "iterations": Layout(
        "whole training iteration",
        {"time": "times SGD's"},
        {
            "HAT AlexNet, batch 64: DRCL": "HAT AlexNet, batch 64",
            "HAT AlexNet, batch 64: DRCL stable=0.8": "HAT AlexNet, batch 64, `stable=0.8`",
            "ResNet-18, batch 32: DRCL": "ResNet-18 (3x3 stem), batch 32",
            "ResNet-18, batch 32: DRCL stable=0.8": "ResNet-18, batch 32, `stable=0.8`",
        },
    ),
    "step": Layout(
        "the step alone, ResNet-18, 11.2 million weights",
        {"time": "times SGD's step"},
        {
            "SGD": "`torch.optim.SGD(foreach=True)`, no momentum",
            "DRCL": "**DRCL as it is, gradients checked for NaN first**",
            "DRCL without the check for NaN": "DRCL, fused pass alone (`check_finite=False`)",
            "DRCL forward-backward": "DRCL, forward-backward",
            "stream": "streaming the same bytes (read four arrays, write two)",
            "DRCL foreach": 'torch operations instead of the fused pass (`backend="foreach"`)',
        },
    ),
    "importance": Layout(
        "",
        {"time": "time", "memory": "peak memory"},
        {"mlp": "MLP 400-400", "alexnet": "HAT AlexNet", "resnet18": "ResNet-18"},
    ),
    "directions": Layout(
        "what is negotiated, and when",
        {"mlp": "MLP 1000-1000, batch 128", "alexnet": "HAT AlexNet, batch 64"},
        {
            "as it comes, every 10 steps": "**256 directions of inputs, 64 of outputs, every 10 steps** (the default)",
            "as it comes, every 5 steps": "the same, every 5 steps",
            "as it comes, every 20 steps": "the same, every 20 steps",
            "128 of inputs, 64 of outputs, every 10 steps": "128 of inputs, 64 of outputs, every 10 steps",
            "512 of inputs, 64 of outputs, every 10 steps": "512 of inputs, 64 of outputs, every 10 steps",
            "256 of inputs and outputs, every 10 steps": "256 of inputs and outputs, every 10 steps",
            "every direction, every 10 steps": "every direction, every 10 steps",
            "every direction, every step": "every direction, every step",
        },
    ),
    "consolidation": Layout(
        "network",
        {"two": "`passes=2`", "one": "`passes=1` (the default)"},
        {
            "mlp": "MLP 1000-1000, 1,000 samples",
            "cnn": "CNN, 448 samples, as in a task of Omniglot",
            "alexnet": "HAT AlexNet, 1,000 samples",
            "resnet": "reduced ResNet-18, 1,000 samples",
            "decoder": "decoder of six layers, 512 samples of 128 tokens",
        },
    ),
    "memory": Layout(
        "network",
        {
            "fisher": "`Fisher()`",
            "kronecker": "`Kronecker()`",
            "all": "`Kronecker(rank=None)`",
            "bounded": "`Kronecker(memory=model)`",
        },
        {
            "MLP 784-1000-1000-10": "MLP 784-1000-1000-10, 1.8 million weights",
            "HAT AlexNet": "HAT AlexNet, 6.5 million",
            "ResNet-18": "ResNet-18, 11.2 million",
            "transformer block, width 768": "transformer block of width 768, 7.1 million",
        },
    ),
    "loading": Layout(
        "",
        {"rate": "times the DataLoader", "share": "share of an iteration"},
        {
            "1x28x28": "28x28",
            "1x28x28, crop and flip": "28x28, crop and flip",
            "3x32x32": "32x32 colour",
            "3x32x32, crop and flip": "32x32 colour, crop and flip",
        },
    ),
    "networks": Layout(
        "",
        {"one": "one thread", "two": "two threads"},
        {
            "alexnet": "HAT AlexNet",
            "alexnet half": "HAT AlexNet, half width",
            "resnet": "reduced ResNet-18",
            "resnet grey": "reduced ResNet-18, grey",
            "cnn": "small CNN, colour",
            "cnn grey": "small CNN, grey",
        },
    ),
}


def read(path: Path | None = None) -> dict[tuple[str, str, str], float]:
    path = path or PATH
    if not path.exists():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        return {(row["table"], row["case"], row["measure"]): float(row["value"]) for row in csv.DictReader(file)}


def keep(table: str, measure: str, values: Mapping[str, float], path: Path | None = None) -> None:
    """Put one column of a table into the file; other columns and cases stay."""
    path = path or PATH
    there = read(path) | {(table, case, measure): value for case, value in values.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows([*key, f"{value:.4g}"] for key, value in sorted(there.items()))


def written(value: float | None, measure: str = "") -> str:
    """No more digits than a ratio deserves."""
    if value is None:
        return ""
    if measure == "share":
        return f"{100 * value:.2f} %"
    return f"{value:.2f}" if value < 5 else f"{value:.1f}" if value < 15 else f"{value:.0f}"


def markdown(name: str) -> str:
    there, layout = read(), LAYOUTS[name]
    lines = [
        "| " + " | ".join([layout.head, *layout.measures.values()]) + " |",
        "|---" * (len(layout.measures) + 1) + "|",
    ]
    for case, words in layout.cases.items():
        cells = [written(there.get((name, case, measure)), measure) for measure in layout.measures]
        lines.append("| " + " | ".join([words, *cells]) + " |")
    return "\n".join(lines)


TABLES: dict[str, Callable[[], str]] = {f"speed {name}": (lambda name=name: markdown(name)) for name in LAYOUTS}
