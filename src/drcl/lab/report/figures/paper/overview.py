"""Figure of the paper: accuracy against forgetting, a long stream, and the loss of an old and a new task."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from drcl.lab.report.figures import style
from drcl.lab.report.figures.paper import needs, panel
from drcl.lab.report.groups import Group
from drcl.lab.report.table import BASELINE, Statistic
from drcl.lab.runs import metrics
from drcl.lab.runs.read import Run

TITLE = "Stability against plasticity"
CAPTION = (
    "Left: average accuracy against average forgetting; the best place is the upper left. Middle: accuracy along "
    "the longest stream, averaged over the tasks seen, or online where it is measured online. Right: loss on the "
    "first task (solid) and on the second task (dashed) while the second is learned."
)
NEEDS = "finished runs of two methods or more on the same tasks, two of them or more; for its right panel losses.csv"
NAME = "fig1"


def forgetting(run: Run) -> float:
    """Forgetting from the best accuracy of a task; if only the diagonal was measured, from that when it was learned."""
    found = metrics.forgetting(run.matrix)
    return metrics.forgetting(run.matrix, "first") if math.isnan(found) else found


def course(run: Run) -> list[float]:
    """Accuracy along the stream."""
    online = run.per_task("online_accuracy")
    return metrics.accuracy_curve(run.matrix) if all(map(math.isnan, online)) else online


def second_task(run: Run) -> tuple[list[float], list[float], list[float]]:
    """While the second task is learned: how much of it is done, the loss of the first task, the loss of the second."""
    points = [row for row in run.records.get("losses", ()) if row.task == 1]
    whole = max((row.step for row in points), default=0) or 1
    return [r.step / whole for r in points], [r.first_loss for r in points], [r.current_loss for r in points]


def draw(runs: Iterable[Run | Group]) -> Figure:
    """Three panels; the first and the last are of the benchmark with most methods, the middle one of the longest."""
    groups = needs.groups_of(runs, NAME, NEEDS, least=2)
    boards = style.by_benchmark(groups)
    main = max(boards, key=lambda b: len(boards[b]))
    if len(boards[main]) < 2:
        raise needs.refusal(NAME, NEEDS, groups)
    longest = max(boards, key=lambda b: boards[b][0].finished[0].tasks)
    looks = style.looks(groups)
    with style.styled():
        figure, ((left, middle, right),) = panel.grid(1, 3, width=3.4, height=2.8)
        _scatter(left, boards[main], looks)
        panel.title(left, main)
        contest = [g for g in boards[longest] if g.method != "joint"]
        panel.lines(middle, contest, course, looks, scale=100, limits=(0, 100))
        panel.over_tasks(middle, boards[longest][0].finished[0].tasks)
        middle.set_ylabel("accuracy, %")
        panel.title(middle, longest)
        _losses(right, pair(boards[main]), looks)
        shown = [g for board in dict.fromkeys((main, longest)) for g in boards[board]]
        panel.legend(figure, shown, looks, panels=3)
        return figure


def _scatter(ax: Axes, groups: list[Group], looks: Mapping[str, style.Look]) -> None:
    for g in groups:
        x = Statistic.of(forgetting(run) for run in g.finished).scaled(100)
        y = Statistic.of(run.value("average_accuracy") for run in g.finished).scaled(100)
        if math.isnan(x.mean) or math.isnan(y.mean):
            continue  # a bound that is trained only once has no forgetting to measure
        spread = [None if math.isnan(v.deviation) else v.deviation for v in (x, y)]
        look = looks[g.label]
        ax.errorbar(x.mean, y.mean, spread[1], spread[0], color=look.colour, marker=look.marker, ms=6, linestyle="")
    ax.grid(True, axis="both")
    ax.margins(0.12)
    ax.set_xlabel("average forgetting, points")
    ax.set_ylabel("average accuracy, %")


def pair(groups: list[Group]) -> list[Group]:
    """The baseline and the best form of DRCL if they recorded losses; otherwise the first two that did."""
    recorded = [g for g in groups if any(second_task(run)[0] for run in g.finished)]
    plain = [g for g in recorded if g.method == BASELINE][:1]
    ours = [g for g in recorded if panel.own(g)][-1:]
    return plain + ours if plain and ours else recorded[:2]


def _losses(ax: Axes, groups: list[Group], looks: Mapping[str, style.Look]) -> None:
    panel.title(ax, "loss while task 2 is learned")
    if not groups:
        ax.set_axis_off()
        ax.text(0.5, 0.5, "no losses.csv", ha="center", color=style.MUTED.light, transform=ax.transAxes)
        return
    for g in groups:
        curves = [second_task(run) for run in g.finished if second_task(run)[0]]
        x, old, new = (np.mean([c[k] for c in curves if len(c[0]) == len(curves[0][0])], axis=0) for k in range(3))
        ax.plot(100 * x, old, color=looks[g.label].colour, linestyle="-")
        ax.plot(100 * x, new, color=looks[g.label].colour, linestyle=(0, (4, 1.5)))
    handles = [Line2D([], [], color=style.MUTED.light, linestyle=dash) for dash in ("-", (0, (4, 1.5)))]
    ax.legend(handles, ["old task", "new task"], fontsize=8, loc="best")
    panel.log_scale(ax)
    ax.set_xlabel("training of task 2, %")
    ax.set_ylabel("test loss")


def describe(runs: Iterable[Run | Group]) -> str:
    """What the picture shows, for readers who cannot see it."""
    parts = []
    for g in style.drawable(runs):
        accuracy = Statistic.of(run.value("average_accuracy") for run in g.finished).mean
        lost = Statistic.of(forgetting(run) for run in g.finished).mean
        if not math.isnan(lost):
            parts.append(f"{g.label} {100 * accuracy:.1f} percent at {100 * lost:.1f} points of forgetting")
    return "Accuracy against forgetting, along a stream, and the loss of old and new tasks: " + "; ".join(parts) + "."
