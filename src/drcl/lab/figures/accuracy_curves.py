"""Figure: average accuracy on the tasks seen so far, after each task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from matplotlib.figure import Figure

from drcl.lab import metrics
from drcl.lab.figures import curves, style
from drcl.lab.rundir import Run

TITLE = "Accuracy on all tasks seen so far"


def draw(runs: Iterable[Run], looks: Mapping[str, style.Look] | None = None) -> Figure:
    return curves.draw(runs, metrics.accuracy_curve, "average accuracy, %", looks, top=102)


def describe(runs: Iterable[Run]) -> str:
    """What the picture shows, for who does not see it."""
    return curves.describe(runs, metrics.accuracy_curve, "average accuracy in percent")
