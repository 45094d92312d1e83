"""One line per method over the tasks, a band for the seeds and the method's name at the end of its line."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from drcl.lab.report.figures import marks, style
from drcl.lab.report.groups import Group
from drcl.lab.runs.read import Run

Measure = Callable[[Run], list[float]]  # one value per task, NaN where there is none


def over_seeds(g: Group, measure: Measure) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of a curve over the seeds; the deviation of one seed is NaN."""
    values = np.array([measure(run) for run in g.finished], dtype=float)
    deviation = values.std(axis=0, ddof=1) if len(values) > 1 else np.full(values.shape[1], math.nan)
    return values.mean(axis=0), deviation


def draw(
    runs: Iterable[Run | Group],
    measure: Measure,
    label: str,
    looks: Mapping[str, style.Look] | None = None,
    limits: tuple[float, float] = (-math.inf, math.inf),
) -> Figure:
    """A panel for each benchmark among ``runs``; values are fractions, shown in hundredths.

    No value lies outside ``limits``, so no band is drawn there, although a deviation may exceed them.
    """
    groups = style.drawable(runs)
    looks = looks or style.looks(groups)
    boards = style.by_benchmark(groups)
    with style.styled():
        figure, axes = style.panels(list(boards))
        if not boards:
            return style.nothing(figure, axes[0], "no finished run")
        direct = style.named_directly([g.label for g in groups])
        for ax, mine in zip(axes, boards.values()):
            ends = _lines(ax, mine, measure, looks, limits)
            ax.set_xlabel("after task")
            ax.set_ylabel(label)
            if math.isfinite(limits[1]):
                ax.set_ylim(top=min(ax.get_ylim()[1], limits[1] + 2))
            if direct:
                _name(ax, ends, looks)
        if not direct:
            style.legend(figure, [g.label for g in groups], looks)
        return figure


def _lines(
    ax: Axes,
    groups: list[Group],
    measure: Measure,
    looks: Mapping[str, style.Look],
    limits: tuple[float, float],
) -> dict[str, float]:
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
            marks.belongs(look, ax.axhline(level, color=look.colour, linestyle=look.dash, linewidth=1.2))
            continue
        first = min(first, int(known[0]))
        low, high = np.clip((100 * (mean - deviation), 100 * (mean + deviation)), *limits)
        band = ax.fill_between(x, low, high, color=look.colour, alpha=0.15, linewidth=0)
        (line,) = ax.plot(x, 100 * mean, color=look.colour, linestyle=look.dash, marker=marker)
        marks.belongs(look, band, line)
        for k in known:
            spread = "" if math.isnan(deviation[k]) else f" ± {100 * deviation[k]:.1f}"
            marks.says(ax, float(k), 100 * mean[k], f"{g.label}, task {k + 1}: {100 * mean[k]:.1f}{spread}", look.key)
    style.task_ticks(ax, tasks)
    start = 0 if math.isinf(first) else first
    width = max(1, tasks - 1 - start)
    ax.set_xlim(start - 0.03 * width, start + 1.015 * width)
    return ends


def _name(ax: Axes, ends: Mapping[str, float], looks: Mapping[str, style.Look]) -> None:
    low, high = ax.get_ylim()
    right = ax.get_xlim()[1]
    for label, y in style.spread(ends, gap=(high - low) * 0.075).items():
        name = ax.annotate(
            label,
            (right, y),
            xytext=(3, 0),
            textcoords="offset points",
            color=looks[label].colour,
            va="center",
            fontweight="normal" if looks[label].reference else "bold",
            annotation_clip=False,
        )
        marks.belongs(looks[label], name)


def describe(runs: Iterable[Run | Group], measure: Measure, name: str) -> str:
    """The first and the last value of every line, in words."""
    parts = []
    for g in style.drawable(runs):
        mean, _ = over_seeds(g, measure)
        known = [(task + 1, 100 * value) for task, value in enumerate(mean) if not math.isnan(value)]
        if known:
            (first, a), (last, b) = known[0], known[-1]
            way = f"{a:.1f} after task {first}" + (f", {b:.1f} after task {last}" if last > first else "")
            parts.append(f"{g.label} {way}")
    return f"Line chart of {name}: " + ("; ".join(parts) or "no finished run") + "."
