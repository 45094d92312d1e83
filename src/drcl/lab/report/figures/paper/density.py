"""Figure of the paper: how the changes of single weights are distributed, and the training loss."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from drcl.lab.report.figures import style
from drcl.lab.report.figures.paper import needs, panel
from drcl.lab.report.groups import Group
from drcl.lab.runs.read import Run
from drcl.lab.training.changes import EDGES, LOW, PER_DECADE

TITLE = "Density of the changes, and training loss"
CAPTION = (
    "Left: share of the weights that a task changes by so much, per quarter of a power of ten; on the far left, "
    "those that stay bit for bit. Right: training loss over a task. Both are means over all tasks but the "
    "first."
)
NEEDS = "finished runs of two tasks or more with changes.csv and curve.csv"
NAME = "dense"
POINTS = 25  # of the loss curve


def shares(run: Run) -> list[float]:
    """Unmoved, then each bin: shares of all shared weights, over all tasks but the first."""
    rows = [row for row in run.records.get("changes", ()) if row.task > 0]
    weights = sum(row.weights for row in rows)
    if not weights:
        return []
    counts = np.sum([[row.unmoved, *row.counts] for row in rows], axis=0)
    return [float(c) for c in counts / weights]


def loss(run: Run) -> list[float]:
    """Training loss at evenly spaced moments of a task, averaged over all tasks but the first."""
    found = []
    for task in sorted({p.task for p in run.curve if p.task > 0}):
        points = [(p.step, p.loss) for p in run.curve if p.task == task and not math.isnan(p.loss)]
        if points:
            steps, losses = zip(*points)
            found.append(np.interp(np.linspace(steps[0], steps[-1], POINTS), steps, losses))
    return [float(v) for v in np.mean(found, axis=0)] if found else [math.nan] * POINTS


def moments(run: Run) -> list[float]:
    """The steps at which `loss` is given, averaged over these tasks."""
    tasks: dict[int, list[int]] = {}
    for p in run.curve:
        if p.task > 0 and not math.isnan(p.loss):
            tasks.setdefault(p.task, []).append(p.step)
    found = [np.linspace(steps[0], steps[-1], POINTS) for steps in tasks.values()]
    return [float(v) for v in np.mean(found, axis=0)] if found else [math.nan] * POINTS


def draw(runs: Iterable[Run | Group]) -> Figure:
    """Two panels per benchmark, a line per method in each."""
    groups = needs.groups_of(runs, NAME, NEEDS, lambda g: all(shares(run) for run in g.finished))
    looks, boards = style.looks(groups), style.by_benchmark(groups)
    with style.styled():
        figure, axes = panel.grid(len(boards), 2, width=3.9)
        for (left, right), (benchmark, mine) in zip(axes, boards.items()):
            _density(left, mine, looks)
            for g in mine:
                x = moments(g.finished[0])
                panel.lines(right, [g], loss, looks, x=x, markers=False, limits=(0, math.inf))
            panel.log_scale(right)
            right.xaxis.set_major_locator(MaxNLocator(6, integer=True))
            right.set_xlabel("step of a task")
            right.set_ylabel("training loss")
            for ax in (left, right):
                panel.title(ax, benchmark)
        panel.legend(figure, groups, looks, panels=2)
        return figure


def _density(ax: Axes, groups: list[Group], looks: Mapping[str, style.Look]) -> None:
    """Powers of ten along the axis; the weights that stay have their own place on the left."""
    middles = [math.log10(edge) + 0.5 / PER_DECADE for edge in EDGES]
    first, last = LOW - 0.5 / PER_DECADE, _end(groups)
    zero = first - 0.9
    for k, g in enumerate(groups):
        mean, _ = panel.over_seeds(g, shares)
        look = looks[g.label]
        ax.plot([first, *middles], 100 * mean[1:], color=look.colour, linestyle=look.dash, drawstyle="steps-mid")
        ax.bar(zero + 0.16 * (k - (len(groups) - 1) / 2), 100 * mean[0], width=0.14, color=look.colour)
    ax.axvline(first - 0.3, color=style.MUTED.light, linewidth=0.6)
    powers = [power for power in range(LOW + 1, math.ceil(last) + 1, 2) if power < last]
    ax.set_xticks([zero, *powers], ["0", *(f"{10.0**p:g}" for p in powers)])
    ax.set_xlim(zero - 0.6, last)
    ax.set_xlabel("|change| of a weight over a task")
    ax.set_ylabel("share of weights, %")


def _end(groups: list[Group]) -> float:
    """Where the largest changes are."""
    top = max(int(np.flatnonzero(shares(run))[-1]) for g in groups for run in g.finished)
    return math.log10(EDGES[min(max(top, 2) - 1, len(EDGES) - 1)]) + 0.5


def describe(runs: Iterable[Run | Group]) -> str:
    """What the picture shows, for readers who cannot see it."""
    parts = []
    for g in style.drawable(runs):
        if all(shares(run) for run in g.finished):
            mean, _ = panel.over_seeds(g, shares)
            final = panel.last(panel.over_seeds(g, loss)[0])
            parts.append(f"{g.label} leaves {100 * mean[0]:.0f} percent in place and ends at a loss of {final:.2g}")
    return "Density of the changes of single weights, and training loss: " + "; ".join(parts) + "."
