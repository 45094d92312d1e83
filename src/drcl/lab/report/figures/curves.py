"""One line a method over the tasks, a band for the seeds and the method's name at the end of its line."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from drcl.lab.report.figures import style
from drcl.lab.report.groups import Group
from drcl.lab.runs.read import Run

Measure = Callable[[Run], list[float]]  # one value a task, NaN where there is none


def over_seeds(g: Group, measure: Measure) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of a curve over the seeds; the deviation of one seed is NaN."""
    values = np.array([measure(run) for run in g.finished], dtype=float)
    deviation = values.std(axis=0, ddof=1) if len(values) > 1 else np.full(values.shape[1], math.nan)
    return values.mean(axis=0), deviation


def draw(
    runs: Iterable[Run],
    measure: Measure,
    label: str,
    looks: Mapping[str, style.Look] | None = None,
    top: float | None = None,
) -> Figure:
    """A panel for each benchmark among ``runs``; values are fractions, shown in hundredths."""
    groups = style.drawable(runs)
    looks = looks or style.looks(groups)
    boards = style.by_benchmark(groups)
    with style.styled():
        figure, axes = style.panels(list(boards))
        if not boards:
            return style.nothing(figure, axes[0], "no finished run")
        direct = style.named_directly([g.label for g in groups])
        for ax, mine in zip(axes, boards.values()):
            ends = _lines(ax, mine, measure, looks)
            ax.set_xlabel("after task")
            ax.set_ylabel(label)
            if top is not None:
                ax.set_ylim(top=min(ax.get_ylim()[1], top))
            if direct:
                _name(ax, ends, looks)
        if not direct:
            style.legend(figure, [g.label for g in groups], looks)
        return figure


def _lines(ax: Axes, groups: list[Group], measure: Measure, looks: Mapping[str, style.Look]) -> dict[str, float]:
    """Draw the lines of one benchmark and return where each ends."""
    ends: dict[str, float] = {}
    first, tasks = math.inf, max(g.finished[0].tasks for g in groups)
    for g in groups:
        mean, deviation = over_seeds(g, measure)
        look, x = looks[g.label], np.arange(len(mean))
        marker = look.marker if len(x) <= 25 else ""  # over a long stream markers would hide the line
        known = np.flatnonzero(~np.isnan(mean))
        if not len(known):
            continue
        ends[g.label] = level = float(100 * mean[known[-1]])
        if look.reference and len(known) == 1:  # a bound measured once is a level to compare with
            ax.axhline(level, color=look.colour, linestyle=look.dash, linewidth=1.2)
            continue
        first = min(first, int(known[0]))
        low, high = 100 * (mean - deviation), 100 * (mean + deviation)
        ax.fill_between(x, low, high, color=look.colour, alpha=0.15, linewidth=0)
        ax.plot(x, 100 * mean, color=look.colour, linestyle=look.dash, marker=marker)
    style.task_ticks(ax, tasks)
    start = 0 if math.isinf(first) else first
    width = max(1, tasks - 1 - start)
    ax.set_xlim(start - 0.03 * width, start + 1.015 * width)
    return ends


def _name(ax: Axes, ends: Mapping[str, float], looks: Mapping[str, style.Look]) -> None:
    low, high = ax.get_ylim()
    right = ax.get_xlim()[1]
    for label, y in style.spread(ends, gap=(high - low) * 0.075).items():
        ax.annotate(
            label,
            (right, y),
            xytext=(3, 0),
            textcoords="offset points",
            color=looks[label].colour,
            va="center",
            fontweight="normal" if looks[label].reference else "bold",
            annotation_clip=False,
        )


def describe(runs: Iterable[Run], measure: Measure, name: str) -> str:
    """The first and last value of every line in words."""
    parts = []
    for g in style.drawable(runs):
        mean, _ = over_seeds(g, measure)
        known = [(task + 1, 100 * value) for task, value in enumerate(mean) if not math.isnan(value)]
        if known:
            (first, a), (last, b) = known[0], known[-1]
            way = f"{a:.1f} after task {first}" + (f", {b:.1f} after task {last}" if last > first else "")
            parts.append(f"{g.label} {way}")
    return f"Line chart of {name}: " + ("; ".join(parts) or "no finished run") + "."
