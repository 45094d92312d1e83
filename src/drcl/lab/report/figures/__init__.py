"""Figures: one file each, a function from runs to a matplotlib figure and one that says the same in words."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from drcl.lab.report.figures import accuracy_curves, cost, drift, forgetting, matrix, movement, time_parts
from drcl.lab.report.figures.style import save
from drcl.lab.runs.read import Run

FIGURES = {
    "accuracy_curves": accuracy_curves,
    "forgetting": forgetting,
    "matrix": matrix,
    "drift": drift,
    "movement": movement,
    "cost": cost,
    "time_parts": time_parts,
}


def save_all(runs: Iterable[Run], folder: str | Path, formats: Iterable[str] = ("svg", "png")) -> list[Path]:
    """Every figure in every format below ``folder``; returns the files."""
    runs, formats = list(runs), list(formats)
    return [
        save(module.draw(runs), Path(folder) / f"{name}.{ending}")
        for name, module in FIGURES.items()
        for ending in formats
    ]
