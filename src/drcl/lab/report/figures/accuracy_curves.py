"""Figure: average accuracy on the tasks seen so far, after each task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from matplotlib.figure import Figure

from drcl.lab.report.figures import curves, style
from drcl.lab.runs import metrics
from drcl.lab.runs.read import Run

TITLE = "Accuracy on all tasks seen so far"


def draw(runs: Iterable[Run], looks: Mapping[str, style.Look] | None = None) -> Figure:
    """A panel for each benchmark, a line for each method."""
    return curves.draw(runs, _curve, "average accuracy, %", looks, top=102)


def describe(runs: Iterable[Run]) -> str:
    """What the picture shows, for who does not see it."""
    return curves.describe(runs, _curve, "average accuracy in percent")


def _curve(run: Run) -> list[float]:
    return metrics.accuracy_curve(run.matrix)
