"""Figure of the paper: learning each task of a long stream, and how far a training step still goes."""

from __future__ import annotations

import math
from collections.abc import Iterable

from matplotlib.figure import Figure

from drcl.lab.report.figures import style
from drcl.lab.report.figures.paper import needs, panel
from drcl.lab.report.groups import Group
from drcl.lab.runs.read import Run

TITLE = "Plasticity over a long stream"
CAPTION = (
    "Left: accuracy on each task when it is learned; on online streams that on each batch before its update. "
    "Right: mean length of a training step at each task, which the paper calls stiffness: the shorter, the stiffer."
)
NEEDS = "finished runs of two tasks or more whose result.json has per_task.step_norm"
NAME = "perm"


def learned(run: Run) -> list[float]:
    """Accuracy on each task when it was learned."""
    online = run.per_task("online_accuracy")
    return [float(v) for v in run.matrix.diagonal()] if all(map(math.isnan, online)) else online


def step_length(run: Run) -> list[float]:
    """Mean length of a step at each task."""
    return run.per_task("step_norm")


def _measured(g: Group) -> bool:
    known = [v for v in step_length(g.finished[0]) if not math.isnan(v)]
    return len(known) > 1


def draw(runs: Iterable[Run | Group]) -> Figure:
    """Two panels per benchmark, a line per method in each."""
    groups = needs.groups_of(runs, NAME, NEEDS, _measured)
    looks, boards = style.looks(groups), style.by_benchmark(groups)
    with style.styled():
        figure, axes = panel.grid(len(boards), 2, width=3.9)
        for (left, right), (benchmark, mine) in zip(axes, boards.items()):
            panel.lines(left, mine, learned, looks, scale=100, limits=(0, 100))
            panel.lines(right, mine, step_length, looks, limits=(0, math.inf))
            online = not all(map(math.isnan, mine[0].finished[0].per_task("online_accuracy")))
            left.set_ylabel("online accuracy, %" if online else "accuracy when learned, %")
            right.set_ylabel("mean length of a step")
            if _wide(mine):
                panel.log_scale(right)
            for ax in (left, right):
                panel.over_tasks(ax, mine[0].finished[0].tasks, "task")
                panel.title(ax, benchmark)
        panel.legend(figure, groups, looks, panels=2)
        return figure


def _wide(groups: Iterable[Group]) -> bool:
    """Whether the lengths span more than a factor of thirty, and a linear axis would hide the short ones."""
    known = [v for g in groups for run in g.finished for v in step_length(run) if v > 0]
    return bool(known) and max(known) > 30 * min(known)


def describe(runs: Iterable[Run | Group]) -> str:
    """What the picture shows, for readers who cannot see it."""
    parts = []
    for g in style.drawable(runs):
        if _measured(g):
            (accuracy, _), (length, _) = panel.over_seeds(g, learned), panel.over_seeds(g, step_length)
            parts.append(
                f"{g.label} goes from {100 * accuracy[0]:.1f} to {100 * panel.last(accuracy):.1f} percent, its steps "
                f"from {panel.last(length[::-1]):.2g} to {panel.last(length):.2g}"
            )
    return "Line charts of accuracy per task and of the length of a training step: " + "; ".join(parts) + "."
