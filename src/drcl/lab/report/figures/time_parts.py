"""Figure: where the time goes. Seconds of training steps, consolidation and evaluation for each method."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from matplotlib.figure import Figure

from drcl.lab.report.figures import marks, style
from drcl.lab.report.groups import Group
from drcl.lab.report.table import Statistic
from drcl.lab.runs.read import Run

TITLE = "Where the time goes"
PARTS = ("training", "consolidation", "evaluation")
_SHADES = {"training": style.HEAT[42], "consolidation": style.HEAT[27], "evaluation": style.HEAT[14]}


def seconds(g: Group) -> dict[str, float]:
    """Mean seconds of each part over the seeds; NaN where it was not recorded."""
    return {part: Statistic.of(run.seconds(part) for run in g.finished).mean for part in PARTS}


def _timed(runs: Iterable[Run | Group]) -> list[tuple[Group, dict[str, float]]]:
    found = [(g, seconds(g)) for g in style.drawable(runs)]
    return [(g, parts) for g, parts in found if not all(map(math.isnan, parts.values()))]


def draw(runs: Iterable[Run | Group], looks: Mapping[str, style.Look] | None = None) -> Figure:
    """A panel for each benchmark, a bar for each method, in the order of the table."""
    timed = _timed(runs)
    looks = looks or style.looks(g for g, _ in timed)
    boards = style.by_benchmark([g for g, _ in timed])
    parts_of = {(g.benchmark, g.label): parts for g, parts in timed}
    with style.styled():
        most = max((len(groups) for groups in boards.values()), default=1)
        figure, axes = style.panels(list(boards), height=max(style.HEIGHT, 0.9 + 0.32 * most))
        if not boards:
            return style.nothing(figure, axes[0], "no finished run says how long it took")
        for ax, (benchmark, groups) in zip(axes, boards.items()):
            left = [0.0] * len(groups)
            for part in PARTS:
                lengths = [parts_of[benchmark, g.label][part] for g in groups]
                lengths = [0.0 if math.isnan(length) else length for length in lengths]
                places = range(len(groups))
                bars = ax.barh(places, lengths, left=left, height=0.55, color=_SHADES[part].light, label=part)
                for k, (g, bar) in enumerate(zip(groups, bars)):
                    marks.belongs(looks[g.label], bar)
                    words = f"{g.label}, {part}: {lengths[k]:.1f} s"
                    marks.says(ax, left[k], k - 0.3, words, looks[g.label].key, (lengths[k], 0.6))
                left = [start + length for start, length in zip(left, lengths)]
            ax.set_yticks(range(len(groups)), [style.short(g.label) for g in groups])
            for g, name in zip(groups, ax.get_yticklabels()):
                marks.belongs(looks[g.label], name)
            ax.invert_yaxis()
            ax.grid(False, axis="y")
            ax.grid(True, axis="x")
            ax.spines["left"].set_visible(False)
            ax.set_xlabel("seconds")
        handles, labels = axes[0].get_legend_handles_labels()
        style.text_legend(figure, handles, labels, columns=3)
        return figure


def describe(runs: Iterable[Run | Group]) -> str:
    """What the picture shows, for readers who cannot see it."""
    lines = []
    for g, parts in _timed(runs):
        known = {part: value for part, value in parts.items() if not math.isnan(value)}
        lines.append(f"{g.label} " + ", ".join(f"{part} {value:.1f}" for part, value in known.items()))
    return "Bar chart of seconds: " + ("; ".join(lines) or "nothing was recorded") + "."
