"""Figures: one file each, a function from runs to a matplotlib figure and one that says the same in words."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from drcl.lab.report.figures import accuracy_curves, cost, drift, forgetting, matrix, movement, paper, time_parts
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
    """Save every figure in every format below ``folder``, and the paper's figures in ``paper/`` if the runs allow it;
    returns the files."""
    runs, formats = list(runs), list(formats)
    drawn = {name: module.draw(runs) for name, module in FIGURES.items()}
    for name, figure in paper.FIGURES.items():
        with suppress(paper.NotEnough):
            drawn[f"paper/{name}"] = figure.draw(runs)
    return [save(figure, Path(folder) / f"{name}.{ending}") for name, figure in drawn.items() for ending in formats]
