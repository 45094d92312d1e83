"""One line a method over the tasks, a band for the seeds and the method's name at the end of its line."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from drcl.lab.figures import style
from drcl.lab.groups import Group
from drcl.lab.rundir import Run

_DIRECT = 9  # more names than this do not fit beside the lines


def over_seeds(g: Group, measure: Callable[[np.ndarray], list[float]]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of a curve over the seeds; NaN where a run has no value or n is 1."""
    values = np.array([measure(run.matrix) for run in g.finished], dtype=float)
    deviation = values.std(axis=0, ddof=1) if len(values) > 1 else np.full(values.shape[1], math.nan)
    return values.mean(axis=0), deviation


def draw(
    runs: Iterable[Run],
    measure: Callable[[np.ndarray], list[float]],
    label: str,
    looks: Mapping[str, style.Look] | None = None,
    top: float | None = None,
) -> Figure:
    """A panel for each benchmark among ``runs``."""
    groups = style.drawable(runs)
    looks = looks or style.looks(groups)
    boards = style.by_benchmark(groups)
    with style.styled():
        figure, axes = style.panels(list(boards))
        if not boards:
            return style.nothing(figure, axes[0], "no finished run")
        for ax, mine in zip(axes, boards.values()):
            _panel(ax, mine, measure, looks, top)
            ax.set_xlabel("after task")
            ax.set_ylabel(label)
        return figure


def _panel(
    ax: Axes,
    groups: list[Group],
    measure: Callable[[np.ndarray], list[float]],
    looks: Mapping[str, style.Look],
    top: float | None,
) -> None:
    tasks = groups[0].finished[0].tasks
    ends: dict[str, float] = {}
    for g in groups:
        mean, deviation = over_seeds(g, measure)
        look, x = looks[g.label], np.arange(len(mean))
        # Over a long stream the markers would hide the line.
        marker = look.marker if len(x) <= 25 else ""
        known = np.flatnonzero(~np.isnan(mean))
        if not len(known):
            continue
        if len(known) == 1:  # a bound measured once is a level to compare with
            ax.axhline(
                100 * mean[known[0]], color=look.colour, linestyle=look.dash, linewidth=1.2, label=g.label
            )
        else:
            low, high = 100 * (mean - deviation), 100 * (mean + deviation)
            ax.fill_between(x, low, high, color=look.colour, alpha=0.15, linewidth=0)
            ax.plot(x, 100 * mean, color=look.colour, linestyle=look.dash, marker=marker, label=g.label)
        ends[g.label] = float(100 * mean[known[-1]])
    style.task_ticks(ax, tasks)
    ax.set_xlim(-0.2, max(1, tasks - 1) + 0.1 * max(1, tasks - 1) / 7)
    if top is not None:
        ax.set_ylim(top=min(ax.get_ylim()[1], top))
    _name(ax, ends, looks)


def _name(ax: Axes, ends: Mapping[str, float], looks: Mapping[str, style.Look]) -> None:
    if len(ends) > _DIRECT:
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=3, fontsize=8)
        return
    low, high = ax.get_ylim()
    places = style.spread(ends, gap=(high - low) * 0.075)
    right = ax.get_xlim()[1]
    for label, y in places.items():
        ax.annotate(
            label,
            (right, y),
            xytext=(3, 0),
            textcoords="offset points",
            color=looks[label].colour,
            va="center",
            fontweight="bold" if not looks[label].reference else "normal",
            annotation_clip=False,
        )


def describe(runs: Iterable[Run], measure: Callable[[np.ndarray], list[float]], name: str) -> str:
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
