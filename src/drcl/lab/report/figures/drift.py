"""Figure: the share of each layer's weights that every task left exactly unchanged."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np
from matplotlib.figure import Figure

from drcl.lab.report.figures import heat, style
from drcl.lab.report.groups import Group
from drcl.lab.runs.read import Run

TITLE = "Weights left exactly unchanged"
_ALL = "all weights"


def shares(g: Group) -> tuple[list[str], np.ndarray]:
    """Layers and their unmoved shares from the second task on, mean over seeds; the last row is all weights.

    The first task is left out: it starts from random weights, so its moving all of them means nothing.
    """
    runs = [run for run in g.finished if run.drift]
    layers = list(dict.fromkeys(row.layer for run in runs for row in run.drift))
    tasks = max((row.task + 1 for run in runs for row in run.drift), default=0)
    stack = np.full((len(runs), len(layers) + 1, tasks), math.nan)
    for k, run in enumerate(runs):
        for row in run.drift:
            stack[k, layers.index(row.layer), row.task] = row.unmoved
        for task, share in run.unmoved_by_task().items():
            stack[k, -1, task] = share
    return [*layers, _ALL], stack.mean(axis=0)[:, 1:] if len(runs) else np.empty((1, 0))


def draw(runs: Iterable[Run | Group]) -> Figure:
    """A panel for each method and benchmark among ``runs``."""
    groups = [g for g in style.drawable(runs) if kept_any(g)]
    several = len({g.benchmark for g in groups}) > 1
    with style.styled():
        maps = [shares(g) for g in groups]
        rows = max((len(names) for names, _ in maps), default=1)
        titles = [f"{g.label}, {g.benchmark}" if several else g.label for g in groups]
        figure, axes = style.panels(titles, height=min(9.0, max(style.HEIGHT, 0.75 + 0.25 * rows)))
        if not groups:
            return style.nothing(figure, axes[0], "no drift was recorded, or every weight moved")
        for ax, (names, values) in zip(axes, maps):
            heat.cells(ax, values, _words(names))
            ax.set_xticks(*heat.ticks([str(t + 2) for t in range(values.shape[1])]))
            ax.set_yticks(*heat.ticks([style.short(name) for name in names], limit=40))
            ax.set_xlabel("weights unmoved per task, %")
            if len(names) > 2:
                ax.axhline(len(names) - 1, color=style.MUTED.light, linewidth=0.6)
        return figure


def _words(names: list[str]) -> Callable[[int, int], str]:
    return lambda i, j: f"{names[i]}, task {j + 2}"


def kept_any(g: Group) -> bool:
    """Whether a map of the shares would show anything but zeros."""
    return bool((np.round(100 * shares(g)[1]) > 0).any())


def describe(runs: Iterable[Run | Group]) -> str:
    parts = []
    for g in style.drawable(runs):
        _, values = shares(g)
        if values.size:
            parts.append(f"{g.label} left {100 * values[-1].mean():.0f} percent of all weights in place")
    return (
        "Heat map of the share of weights (rows: layers) that each task (columns) left exactly unmoved; "
        "from the second task on, " + ("; ".join(parts) or "nothing was recorded") + "."
    )
