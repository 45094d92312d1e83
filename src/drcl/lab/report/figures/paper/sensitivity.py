"""Figure of the paper: average accuracy and forgetting against the strength of the protection."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from drcl.lab.report.figures import style
from drcl.lab.report.figures.paper import needs, panel
from drcl.lab.report.groups import Group, same_seeds
from drcl.lab.report.table import Statistic
from drcl.lab.runs.read import Run

TITLE = "Accuracy and forgetting against the strength"
CAPTION = (
    "Left: average accuracy. Right: average forgetting. Both against the strength lambda of the protection; the "
    "band is one standard deviation over seeds; only seeds that all strengths have are drawn."
)
NEEDS = "finished runs of one method at two strengths or more, the rest of their options the same"
NAME = "abla-1"
STRENGTHS = ("strength", "lam")  # the names that methods use for it
MEASURES = {"average_accuracy": "average accuracy, %", "forgetting": "forgetting, points"}


def strength(g: Group) -> float:
    """Its strength; NaN for a method that has none."""
    options = g.runs[0].options("method_options")
    values = [options.get(key) for key in STRENGTHS]
    return next((float(v) for v in values if isinstance(v, int | float) and not isinstance(v, bool)), math.nan)


def series(groups: Sequence[Group]) -> dict[str, list[tuple[float, Group]]]:
    """Groups of one method that differ in their strength alone, in its order, by what they have in common."""
    found: dict[str, list[tuple[float, Group]]] = {}
    for g in groups:
        value = strength(g)
        if value > 0 and not math.isinf(value):
            rest = {k: v for k, v in g.runs[0].options("method_options").items() if k not in STRENGTHS}
            key = repr((g.benchmark, g.method, sorted(rest.items()), sorted(g.runs[0].options("training").items())))
            found.setdefault(key, []).append((value, g))
    named: dict[str, list[tuple[float, Group]]] = {}
    for several in found.values():
        if len({value for value, _ in several}) > 1:
            name = f"{several[0][1].method}, {several[0][1].benchmark}"
            while name in named:
                name += " (other options)"
            alike = same_seeds(g for _, g in several)
            named[name] = sorted(zip((value for value, _ in several), alike), key=lambda pair: pair[0])
    return named


def draw(runs: Iterable[Run | Group]) -> Figure:
    """Two panels, a line per method and benchmark in each."""
    groups = needs.groups_of(runs, NAME, NEEDS)
    found = series(groups)
    if not found:
        raise needs.refusal(NAME, NEEDS, groups)
    looks = style.looks([Group(g.benchmark, g.method, name, g.runs) for name, ((_, g), *_) in found.items()])
    with style.styled():
        figure, (axes,) = panel.grid(1, 2)
        for ax, (key, words) in zip(axes, MEASURES.items()):
            for name, points in found.items():
                values = [Statistic.of(run.value(key) for run in g.finished).scaled(100) for _, g in points]
                x, look = [value for value, _ in points], looks[name]
                mean = np.array([v.mean for v in values])
                spread = np.array([v.deviation for v in values])
                ax.fill_between(x, mean - spread, mean + spread, color=look.colour, alpha=0.15, linewidth=0)
                ax.plot(x, mean, color=look.colour, linestyle=look.dash, marker=look.marker, label=name)
            ax.set_xscale("log")
            ax.xaxis.set_major_locator(LogLocator(numticks=6))  # more labels would touch one another
            ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}".replace("e-0", "e-"))
            ax.xaxis.set_minor_locator(NullLocator())
            ax.set_xlabel("strength lambda")
            ax.set_ylabel(words)
        if len(found) > 1:
            style.text_legend(figure, axes[0].get_legend_handles_labels()[0], list(found), columns=2)
        else:
            for ax in axes:
                panel.title(ax, next(iter(found)))
        return figure


def describe(runs: Iterable[Run | Group]) -> str:
    """What the picture shows, for readers who cannot see it."""
    parts = []
    for name, points in series(style.drawable(runs)).items():
        told = []
        for value, g in points:
            accuracy, lost = (100 * Statistic.of(run.value(key) for run in g.finished).mean for key in MEASURES)
            told.append(f"{accuracy:.1f} percent and {lost:.1f} points at {value:g}")
        parts.append(f"{name}: {', '.join(told)}")
    return "Line charts of average accuracy and forgetting against the strength: " + "; ".join(parts) + "."
