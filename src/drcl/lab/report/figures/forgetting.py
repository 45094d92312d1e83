"""Figure: forgetting of the earlier tasks, after each task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from matplotlib.figure import Figure

from drcl.lab.report.figures import curves, style
from drcl.lab.report.groups import Group
from drcl.lab.runs import metrics
from drcl.lab.runs.read import Run

TITLE = "Accuracy lost on earlier tasks"


def draw(runs: Iterable[Run | Group], looks: Mapping[str, style.Look] | None = None) -> Figure:
    """A panel for each benchmark, a line for each method."""
    return curves.draw(runs, _curve, "forgetting, points", looks, limits=(-100, 100))


def describe(runs: Iterable[Run | Group]) -> str:
    """What the picture shows, for readers who cannot see it."""
    return curves.describe(runs, _curve, "forgetting in points")


def _curve(run: Run) -> list[float]:
    return metrics.forgetting_curve(run.matrix)
