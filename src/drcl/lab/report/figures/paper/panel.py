"""Panels that several figures of the paper share: a grid of them, lines over the seeds, and one legend for all."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from drcl.lab.report.figures import style
from drcl.lab.report.groups import Group
from drcl.lab.runs.read import Run

Measure = Callable[[Run], Sequence[float]]
OWN = "drcl"  # the paper's method, and the beginning of its variants' names


def grid(rows: int, columns: int, width: float = 3.5, height: float = 2.7) -> tuple[Figure, list[list[Axes]]]:
    """Rows of panels."""
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    figure.patch.set_facecolor("none")
    axes = [[figure.add_subplot(rows, columns, r * columns + c + 1) for c in range(columns)] for r in range(rows)]
    for row in axes:
        for ax in row:
            ax.patch.set_facecolor("none")
    return figure, axes


def title(ax: Axes, words: str) -> None:
    ax.set_title(words, loc="left", color=style.INK.light)


def over_seeds(g: Group, measure: Measure) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation over the seeds that have a value; the deviation of one seed is NaN."""
    values = np.array([list(measure(run)) for run in g.finished], dtype=float)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # for places where no seed has a value
        mean = np.nanmean(values, axis=0)
        deviation = np.nanstd(values, axis=0, ddof=1) if len(values) > 1 else np.full(len(mean), math.nan)
    return mean, deviation


def lines(
    ax: Axes,
    groups: Iterable[Group],
    measure: Measure,
    looks: Mapping[str, style.Look],
    scale: float = 1.0,
    x: Sequence[float] | None = None,
    markers: bool = True,
    limits: tuple[float, float] = (-math.inf, math.inf),
) -> int:
    """A line per group with a band over its seeds, over tasks unless `x` says otherwise; how many were drawn.

    No band exceeds the `limits` of the measure, in the unit that is drawn.
    """
    drawn = 0
    for g in groups:
        mean, deviation = over_seeds(g, measure)
        known = ~np.isnan(mean)
        if not known.any():
            continue
        look, places = looks[g.label], np.arange(len(mean)) if x is None else np.asarray(x)
        mean, deviation = scale * mean, scale * deviation
        if look.reference and known.sum() == 1:  # a bound measured once is a level to compare with
            ax.axhline(float(mean[known][0]), color=look.colour, linestyle=look.dash, linewidth=1.2)
        else:
            marker = look.marker if markers and len(places) <= 25 else ""
            low, high = np.clip((mean - deviation, mean + deviation), *limits)
            ax.fill_between(places, low, high, color=look.colour, alpha=0.15, linewidth=0)
            ax.plot(places[known], mean[known], color=look.colour, linestyle=look.dash, marker=marker, label=g.label)
        drawn += 1
    return drawn


def over_tasks(ax: Axes, tasks: int, words: str = "after task", most: int = 10) -> None:
    """Tasks along the axis, counted from 1; `most` of them are numbered."""
    if tasks <= most:
        places = list(range(tasks))
    else:
        step = next(s for s in (2, 5, 10, 20, 50, 100, 200, 500, tasks) if tasks / s <= most)
        places = [0, *range(step - 1, tasks, step)]
    ax.set_xticks(places, [str(place + 1) for place in places])
    width = max(1, tasks - 1)
    ax.set_xlim(-0.04 * width, 1.04 * width)
    ax.set_xlabel(words)


def log_scale(ax: Axes) -> None:
    """A logarithmic axis upwards, numbers written out: powers of ten, with 2 and 5 between them where it is short, and
    round numbers where it is so short that these would leave one number or none."""
    ax.set_yscale("log")
    low, high = ax.get_ylim()
    decades = math.log10(high / low)
    powers = LogLocator(subs=(1.0, 2.0, 5.0) if decades < 1.5 else (1.0,))
    ax.yaxis.set_major_locator(powers if decades > 0.5 else MaxNLocator(5, steps=[1, 2, 5, 10]))
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.yaxis.set_minor_locator(NullLocator())


def legend(figure: Figure, groups: Iterable[Group], looks: Mapping[str, style.Look], panels: int) -> None:
    """All methods below the panels, in as many columns as the figure is wide."""
    labels = list(dict.fromkeys(g.label for g in groups))
    handles = [
        Line2D([], [], color=looks[each].colour, linestyle=looks[each].dash, marker=looks[each].marker)
        for each in labels
    ]
    letters = max(map(len, labels))
    columns = max(1, min(len(labels), int(panels * 3.5 / (0.45 + 0.06 * min(letters, 40)))))
    figure.set_figheight(figure.get_figheight() + 0.19 * -(-len(labels) // columns))
    shown = [style.short(label, room=40) for label in labels]
    figure.legend(handles, shown, loc="outside lower center", ncols=columns, fontsize=8, columnspacing=1.4)


def own(g: Group) -> bool:
    """Whether this is the method of the paper, in any of its forms."""
    return g.method == OWN or g.method.startswith(f"{OWN}-")


def last(values: Iterable[float]) -> float:
    """The last one that is known."""
    known = [v for v in values if not math.isnan(v)]
    return known[-1] if known else math.nan
