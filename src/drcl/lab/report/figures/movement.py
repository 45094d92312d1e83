"""Figure: how far each task moved the weights, in proportion to their size."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from matplotlib.figure import Figure

from drcl.lab.report.figures import curves, style
from drcl.lab.report.groups import Group
from drcl.lab.runs.read import Run

TITLE = "How far the weights moved"


def draw(runs: Iterable[Run | Group], looks: Mapping[str, style.Look] | None = None) -> Figure:
    """A panel for each benchmark, a line for each method."""
    return curves.draw(runs, relative_change, "relative change, %", looks, limits=(0, math.inf))


def describe(runs: Iterable[Run | Group]) -> str:
    """What the picture shows, for readers who cannot see it."""
    return curves.describe(runs, relative_change, "relative change of the weights at each task in percent")


def relative_change(run: Run) -> list[float]:
    """Relative change at each task from the second on, the layers weighted by their size."""
    moved, weights = [0.0] * run.tasks, [0] * run.tasks
    for row in run.drift:
        if 1 <= row.task < run.tasks:
            moved[row.task] += row.relative_change * row.weights
            weights[row.task] += row.weights
    return [change / n if n else math.nan for change, n in zip(moved, weights)]
