"""The ten data figures of the paper, each in its own file: ``FIGURES[name].draw(runs)``.

A figure is drawn only from finished runs. If there are too few, it raises ``NotEnough``, whose sentence says which runs
are needed.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType

from matplotlib.figure import Figure

from drcl.lab.common.fields import nearest
from drcl.lab.report.figures.paper import (
    blocks,
    density,
    horizon,
    overview,
    proposals,
    retention,
    sensitivity,
    solver_cost,
    tradeoff,
    updates,
)
from drcl.lab.report.figures.paper.needs import NotEnough, PaperFigure
from drcl.lab.report.groups import Group
from drcl.lab.runs.read import Run

__all__ = ["FIGURES", "NotEnough", "PaperFigure", "draw"]

_MODULES: dict[str, ModuleType] = {
    "fig1": overview,
    "plas-stab": retention,
    "heat": updates,
    "forget": blocks,
    "l1-loss": proposals,
    "dense": density,
    "matrix": tradeoff,
    "perm": horizon,
    "cost": solver_cost,
    "abla-1": sensitivity,
}
FIGURES: dict[str, PaperFigure] = {
    name: PaperFigure(name, m.TITLE, m.CAPTION, m.NEEDS, m.draw, m.describe) for name, m in _MODULES.items()
}


def draw(name: str, runs: Iterable[Run | Group]) -> Figure:
    """The figure of that name; an unknown name and too few runs are refused with a sentence."""
    if name not in FIGURES:
        raise ValueError(f"{name!r} is not a figure of the paper: {nearest(name, FIGURES)}")
    return FIGURES[name].draw(runs)
