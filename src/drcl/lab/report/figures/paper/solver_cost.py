"""Figure of the paper: splitting with L1 and with L2: accuracy after one epoch, residual, and the cost against SGD."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from drcl.lab.report.figures import style
from drcl.lab.report.figures.paper import needs, panel
from drcl.lab.report.groups import Group
from drcl.lab.report.table import BASELINE, Statistic
from drcl.lab.runs.read import Run

TITLE = "Selective against dense splitting, and its cost"
CAPTION = (
    "Left: accuracy on each task after one epoch of it. Middle: residual |y' - y| of the splitting relative to "
    "its first value, over the iterations of a step; if all steps have one iteration, over the steps of a task. "
    "Right: time per task as a multiple of SGD's; the part of the gradients is their number at SGD's time for "
    "each; runs of another machine than SGD's have no bar."
)
NEEDS = (
    "finished runs of two forms of drcl, such as prox=l1 and prox=l2, and of sgd on the same tasks, with steps.csv and "
    "cost.json"
)
NAME = "cost"
PARTS = {"gradients": style.HEAT[42], "proximal step": style.HEAT[27], "importance": style.HEAT[14]}
POINTS = 12  # of a residual over steps


def after_one_epoch(run: Run) -> list[float]:
    return run.per_task("after_one_epoch_accuracy")


def residual(run: Run) -> list[float]:
    """Mean over tasks, as a share of the first value: by iteration, or along the steps of a task."""
    tasks: dict[int, list[float]] = {}
    for row in run.records.get("iterations", ()):
        tasks.setdefault(row.task, []).append(row.residual)
    if not tasks:
        for row in run.records.get("steps", ()):
            if not math.isnan(row.residual):
                tasks.setdefault(row.task, []).append(row.residual)
        places = np.linspace(0, 1, POINTS)
        tasks = {t: [*np.interp(places, np.linspace(0, 1, len(v)), v)] for t, v in tasks.items() if len(v) > 1}
    found = [np.array(values) / values[0] for values in tasks.values() if values[0] > 0]
    shortest = min(map(len, found), default=0)
    return [float(v) for v in np.mean([each[:shortest] for each in found], axis=0)] if found else []


def parts(g: Group, unit: Group) -> dict[str, float]:
    """Seconds as multiples of SGD's, which are training alone: gradients, proximal step, importance."""

    def mean(group: Group, key: str) -> float:
        return Statistic.of(run.value(key) for run in group.finished).mean

    def seconds(group: Group, part: str) -> float:
        return Statistic.of(run.seconds(part) for run in group.finished).mean

    whole = seconds(unit, "training") + seconds(unit, "consolidation")
    each = seconds(unit, "training") / mean(unit, "gradient_evaluations")
    training = seconds(g, "training")
    gradients = min(training, each * mean(g, "gradient_evaluations"))
    importance = seconds(g, "consolidation")
    return dict(zip(PARTS, (gradients / whole, (training - gradients) / whole, importance / whole)))


def draw(runs: Iterable[Run | Group]) -> Figure:
    """Three panels of the benchmark with most forms of DRCL among the runs."""
    groups = needs.groups_of(runs, NAME, NEEDS, lambda g: g.method == BASELINE or (panel.own(g) and _split(g)))
    boards = {b: mine for b, mine in style.by_benchmark(groups).items() if any(g.method == BASELINE for g in mine)}
    counts = {b: sum(map(panel.own, mine)) for b, mine in boards.items()}
    if max(counts.values(), default=0) < 2:
        raise needs.refusal(NAME, NEEDS, style.drawable(runs), groups)
    benchmark = max(counts, key=lambda b: counts[b])
    mine = boards[benchmark]
    looks, ours = style.looks(mine), [g for g in mine if panel.own(g)]
    with style.styled():
        figure, ((left, middle, right),) = panel.grid(1, 3, width=3.5, height=2.8)
        panel.lines(left, mine, after_one_epoch, looks, scale=100, limits=(0, 100))
        panel.over_tasks(left, mine[0].finished[0].tasks, "task")
        left.set_ylabel("accuracy after one epoch, %")
        panel.title(left, benchmark)
        _residuals(middle, ours, looks)
        _bars(right, mine)
        panel.legend(figure, mine, looks, panels=3)
        return figure


def _split(g: Group) -> bool:
    return len(residual(g.finished[0])) > 1


def _residuals(ax: Axes, groups: list[Group], looks: Mapping[str, style.Look]) -> None:
    counted = [g for g in groups if g.finished[0].records.get("iterations")]
    several = bool(counted)
    groups = counted or groups  # iterations of a step and steps of a task do not share an axis
    for g in groups:
        length = min(len(residual(run)) for run in g.finished)
        x = range(1, length + 1) if several else np.linspace(0, 100, length)
        panel.lines(ax, [g], lambda run, n=length: residual(run)[:n], looks, x=list(x))  # type: ignore[misc]
    panel.log_scale(ax)
    ax.set_xlabel("iteration" if several else "steps of a task, %")
    ax.set_ylabel("residual, share of the first")
    panel.title(ax, "convergence")
    if several:
        ax.set_xticks(range(1, 1 + max(len(residual(g.finished[0])) for g in groups)))


def _machines(g: Group) -> set[str]:
    return {run.machine for run in g.finished}


def _bars(ax: Axes, groups: list[Group]) -> None:
    unit = next(g for g in groups if g.method == BASELINE)
    groups = [g for g in groups if _machines(g) == _machines(unit)]
    left = np.zeros(len(groups))
    found = [parts(g, unit) for g in groups]
    for name, tone in PARTS.items():
        lengths = np.array([each[name] for each in found])
        ax.barh(range(len(groups)), lengths, left=left, height=0.55, color=tone.light, label=name)
        left = left + lengths
    for place, total in enumerate(left):
        ax.annotate(f"{total:.2f}", (total, place), (4, 0), textcoords="offset points", va="center", fontsize=8)
    ax.set_yticks(range(len(groups)), [style.short(g.label, room=22) for g in groups])
    ax.invert_yaxis()
    ax.grid(False, axis="y")
    ax.grid(True, axis="x")
    ax.spines["left"].set_visible(False)
    ax.margins(x=0.15)
    ax.set_xlabel("time per task, multiple of SGD's")
    ax.legend(fontsize=8, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=3, columnspacing=0.9, handlelength=1.0)


def describe(runs: Iterable[Run | Group]) -> str:
    """What the picture shows, for readers who cannot see it."""
    groups = style.drawable(runs)
    unit = next((g for g in groups if g.method == BASELINE), None)
    told = []
    for g in groups:
        once = Statistic.of(panel.last(after_one_epoch(run)) for run in g.finished).mean
        words = f"{g.label} has {100 * once:.1f} percent after one epoch of the last task"
        if unit is not None and _machines(g) == _machines(unit):
            words += f" and takes {sum(parts(g, unit).values()):.2f} times SGD's time"
        told.append(words)
    return "Accuracy after one epoch, residual and cost: " + "; ".join(told) + "."
