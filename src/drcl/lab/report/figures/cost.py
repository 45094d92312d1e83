"""Figure: what accuracy costs. One point per method: time to learn against final average accuracy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from drcl.lab.report.figures import marks, style
from drcl.lab.report.groups import Group, group
from drcl.lab.report.table import Row, Statistic, rows
from drcl.lab.runs.read import Run

TITLE = "Accuracy against time"


def _points(table: Iterable[Row]) -> list[Row]:
    return [row for row in table if not math.isnan(row.values["learning_seconds"].mean)]


def _unit(points: list[Row]) -> tuple[str, str]:
    """Multiples of SGD's time if every point has one, otherwise seconds."""
    if all(not math.isnan(row.values["relative_time"].mean) for row in points):
        return "relative_time", "time to learn, multiple of SGD's"
    return "learning_seconds", "time to learn, seconds"


def draw(runs: Iterable[Run | Group], looks: Mapping[str, style.Look] | None = None) -> Figure:
    """A panel for each benchmark among ``runs``."""
    runs = list(runs)
    looks = looks or style.looks(group(runs))
    points = _points(rows(runs))
    boards = list(dict.fromkeys(row.benchmark for row in points))
    with style.styled():
        figure, axes = style.panels(boards)
        if not boards:
            return style.nothing(figure, axes[0], "no finished run says how long it took")
        direct = style.named_directly([row.label for row in points])
        for ax, benchmark in zip(axes, boards):
            _panel(ax, [row for row in points if row.benchmark == benchmark], looks, direct)
        if not direct:
            style.legend(figure, [row.label for row in points], looks)
        return figure


def _panel(ax: Axes, points: list[Row], looks: Mapping[str, style.Look], direct: bool) -> None:
    key, label = _unit(points)
    for row in points:
        look, x, y = looks[row.label], row.values[key], row.values["average_accuracy"].scaled(100)
        drawn = ax.errorbar(
            x.mean,
            y.mean,
            xerr=_reach(x, math.inf),
            yerr=_reach(y, 100),
            color=look.colour,
            marker=look.marker,
            markersize=7,
            markerfacecolor=style.CARD.light if look.reference else look.colour,
            markeredgewidth=1.4,
            elinewidth=1,
            linestyle="",
        )
        marks.belongs(look, drawn.lines[0], *drawn.lines[1], *drawn.lines[2])
        unit = f"{x.mean:.2f} times SGD" if key == "relative_time" else f"{x.mean:.1f} s"
        marks.says(ax, x.mean, y.mean, f"{row.label}: {y.mean:.1f} % in {unit}", look.key)
    times = [row.values[key].mean for row in points]
    if max(times) > 5 * min(times) > 0:
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        ax.xaxis.set_minor_formatter(lambda value, _: "")
    ax.margins(x=0.12, y=0.15)
    ax.autoscale_view()
    ax.grid(True, axis="both")
    ax.set_xlabel(label)
    ax.set_ylabel("average accuracy, %")
    if direct:
        _name(ax, points, key, looks)


def _reach(value: Statistic, most: float) -> list[list[float]] | None:
    """How far an error bar goes down and up: one deviation, but never beyond possible values."""
    if math.isnan(value.deviation):
        return None
    return [[min(value.deviation, value.mean)], [min(value.deviation, most - value.mean)]]


def _name(ax: Axes, points: list[Row], key: str, looks: Mapping[str, style.Look]) -> None:
    low, high = ax.get_ylim()
    heights = {row.label: 100 * row.values["average_accuracy"].mean for row in points}
    places = style.spread(heights, gap=(high - low) * 0.075)
    for row in points:
        x = row.values[key].mean
        across = ax.transLimits.transform((math.log10(x) if ax.get_xscale() == "log" else x, 0))[0]
        left = across > 0.7
        name = ax.annotate(
            row.label,
            (x, places[row.label]),
            xytext=(-8 if left else 8, 0),
            textcoords="offset points",
            ha="right" if left else "left",
            va="center",
            color=looks[row.label].colour,
            fontweight="normal" if looks[row.label].reference else "bold",
        )
        marks.belongs(looks[row.label], name)


def describe(runs: Iterable[Run | Group]) -> str:
    points = _points(rows(list(runs)))
    key, label = _unit(points)
    parts = [
        f"{row.label} at {row.values[key].mean:.2f}, {100 * row.values['average_accuracy'].mean:.1f} percent"
        for row in points
    ]
    return f"Scatter of average accuracy against {label}: " + ("; ".join(parts) or "nothing to show") + "."
