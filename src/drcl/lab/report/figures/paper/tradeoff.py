"""Figure of the paper: average forgetting and average incremental accuracy, side by side."""

from __future__ import annotations

import math
from collections.abc import Iterable

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from drcl.lab.report.figures import style
from drcl.lab.report.figures.paper import needs, panel
from drcl.lab.report.groups import Group
from drcl.lab.report.table import Statistic
from drcl.lab.runs.read import Run

TITLE = "Forgetting and incremental accuracy"
CAPTION = (
    "Left: average forgetting F_T, less is better. Right: average incremental accuracy A_inc, more is better. "
    "Both are fractions; the line at a bar's end is one standard deviation over seeds."
)
NEEDS = "finished runs of two tasks or more that were tested on all tasks seen after each task"
NAME = "matrix"
MEASURES = {"forgetting": "average forgetting F_T", "incremental_accuracy": "average incremental accuracy A_inc"}


def values(g: Group, key: str) -> Statistic:
    return Statistic.of(run.value(key) for run in g.finished)


def _known(g: Group) -> bool:
    return not any(math.isnan(values(g, key).mean) for key in MEASURES)


def draw(runs: Iterable[Run | Group]) -> Figure:
    """Two panels per benchmark, a bar per method in each."""
    groups = needs.groups_of(runs, NAME, NEEDS, _known)
    looks, boards = style.looks(groups), style.by_benchmark(groups)
    with style.styled():
        most = max(map(len, boards.values()))
        figure, axes = panel.grid(len(boards), 2, height=max(1.7, 0.8 + 0.27 * most))
        for row, (benchmark, mine) in zip(axes, boards.items()):
            for ax, (key, words) in zip(row, MEASURES.items()):
                _bars(ax, mine, key, looks)
                ax.set_xlabel(words)
                panel.title(ax, benchmark)
        return figure


def _bars(ax: Axes, groups: list[Group], key: str, looks: dict[str, style.Look]) -> None:
    found = [values(g, key) for g in groups]
    places = range(len(groups))
    for place, g, value in zip(places, groups, found):
        spread = None if math.isnan(value.deviation) else value.deviation
        ax.barh(place, value.mean, height=0.62, color=looks[g.label].colour, xerr=spread, ecolor=style.INK.light)
        end = value.mean + (spread or 0) if value.mean >= 0 else 0
        ax.annotate(f"{value.mean:.2f}", (end, place), (4, 0), textcoords="offset points", va="center", fontsize=8)
    ax.set_yticks(list(places), [style.short(g.label, room=26) for g in groups])
    ax.invert_yaxis()
    ax.grid(False, axis="y")
    ax.grid(True, axis="x")
    ax.spines["left"].set_visible(False)
    ax.margins(x=0.18)


def describe(runs: Iterable[Run | Group]) -> str:
    """What the picture shows, for readers who cannot see it."""
    parts = [
        f"{g.label} {values(g, 'forgetting').mean:.2f} and {values(g, 'incremental_accuracy').mean:.2f}"
        for g in style.drawable(runs)
        if _known(g)
    ]
    return "Bar charts of average forgetting and average incremental accuracy: " + "; ".join(parts) + "."
