"""Figure: forgetting of the earlier tasks, after each task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from matplotlib.figure import Figure

from drcl.lab import metrics
from drcl.lab.figures import curves, style
from drcl.lab.rundir import Run

TITLE = "Accuracy lost on earlier tasks"


def draw(runs: Iterable[Run], looks: Mapping[str, style.Look] | None = None) -> Figure:
    return curves.draw(runs, metrics.forgetting_curve, "forgetting, points", looks)


def describe(runs: Iterable[Run]) -> str:
    return curves.describe(runs, metrics.forgetting_curve, "forgetting in points")
