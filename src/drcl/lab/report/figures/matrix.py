"""Figure: the accuracy matrix of each method, averaged over its seeds."""

from __future__ import annotations

from collections.abc import Iterable

from matplotlib.figure import Figure

from drcl.lab.report.figures import heat, style
from drcl.lab.report.groups import Group
from drcl.lab.runs.read import Run

TITLE = "Accuracy on each task after each task"


def draw(runs: Iterable[Run | Group]) -> Figure:
    """A panel for each method and benchmark among ``runs``."""
    groups = style.drawable(runs)
    several = len({g.benchmark for g in groups}) > 1
    with style.styled():
        titles = [f"{g.label}, {g.benchmark}" if several else g.label for g in groups]
        figure, axes = style.panels(titles, width=3.3, height=3.2)
        if not groups:
            return style.nothing(figure, axes[0], "no finished run")
        for ax, g in zip(axes, groups):
            values = g.matrix()
            heat.cells(ax, values, lambda i, j: f"task {j + 1} after task {i + 1}")
            numbers = [str(t + 1) for t in range(len(values))]
            ax.set_xticks(*heat.ticks(numbers))
            ax.set_yticks(*heat.ticks(numbers))
            ax.set_xlabel("accuracy on task, %")
            ax.set_ylabel("after task")
            ax.set_box_aspect(1)
        return figure


def describe(runs: Iterable[Run | Group]) -> str:
    parts = []
    for g in style.drawable(runs):
        last = ", ".join(f"{100 * value:.0f}" for value in g.matrix()[-1])
        parts.append(f"{g.label} ends with {last} percent on tasks 1 to {len(g.matrix())}")
    return "Heat map of accuracy on each task (columns) after each task (rows): " + "; ".join(parts) + "."
