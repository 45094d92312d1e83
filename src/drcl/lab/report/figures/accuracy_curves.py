"""Figure: average accuracy on the tasks seen so far, after each task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from matplotlib.figure import Figure

from drcl.lab.report.figures import curves, style
from drcl.lab.report.groups import Group
from drcl.lab.runs import metrics
from drcl.lab.runs.read import Run

TITLE = "Accuracy on all tasks seen so far"


def draw(runs: Iterable[Run | Group], looks: Mapping[str, style.Look] | None = None) -> Figure:
    """A panel for each benchmark, a line for each method."""
    return curves.draw(runs, _curve, "average accuracy, %", looks, limits=(0, 100))


def describe(runs: Iterable[Run | Group]) -> str:
    """What the picture shows, for readers who cannot see it."""
    return curves.describe(runs, _curve, "average accuracy in percent")


def _curve(run: Run) -> list[float]:
    return metrics.accuracy_curve(run.matrix)
