"""Figure of the paper: forgetting of consecutive blocks of ten tasks while later tasks are learned."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from matplotlib.figure import Figure

from drcl.lab.report.figures import style
from drcl.lab.report.figures.paper import needs, panel
from drcl.lab.report.groups import Group
from drcl.lab.runs import metrics
from drcl.lab.runs.read import Run

TITLE = "Forgetting in blocks of ten tasks"
CAPTION = (
    "Forgetting of each block of ten consecutive tasks after each later task, and in the last panel of all tasks "
    "so far. Tasks of a block that are still to come are not counted."
)
NEEDS = "finished runs of eleven tasks or more that were tested on all tasks seen after each task (evaluate=all)"
NAME = "forget"
BLOCK = 10


def blocks(tasks: int) -> dict[str, range]:
    """The blocks of a stream that later tasks can cause to be forgotten, and all tasks together."""
    found = {
        f"tasks {first + 1} to {min(first + BLOCK, tasks)}": range(first, min(first + BLOCK, tasks))
        for first in range(0, tasks - 1, BLOCK)
    }
    return found | {"average over all tasks": range(tasks)}


def forgotten(members: range) -> Callable[[Run], list[float]]:
    """F_G after each task, for one block."""
    return lambda run: [metrics.group_forgetting(run.matrix, members, after) for after in range(run.tasks)]


def _known(g: Group) -> bool:
    return not math.isnan(metrics.group_forgetting(g.finished[0].matrix, range(BLOCK), g.finished[0].tasks - 1))


def draw(runs: Iterable[Run | Group]) -> Figure:
    """A panel per block of the longest stream among the runs, a line per method."""
    groups = needs.groups_of(runs, NAME, NEEDS, _known, tasks=BLOCK + 1)
    tasks = max(g.finished[0].tasks for g in groups)
    benchmark = next(g.benchmark for g in groups if g.finished[0].tasks == tasks)
    groups = [g for g in groups if g.benchmark == benchmark]
    looks, found = style.looks(groups), blocks(tasks)
    columns = min(4, len(found))
    rows = -(-len(found) // columns)
    with style.styled():
        figure, axes = panel.grid(rows, columns, width=2.7, height=2.2)
        flat = [ax for row in axes for ax in row]
        for ax, (words, members) in zip(flat, found.items()):
            panel.lines(ax, groups, forgotten(members), looks, scale=100, limits=(-100, 100))
            panel.over_tasks(ax, tasks, most=6)
            panel.title(ax, words)
        top = max(ax.get_ylim()[1] for ax in flat[: len(found)])
        low = min(ax.get_ylim()[0] for ax in flat[: len(found)])
        for k, ax in enumerate(flat):
            ax.set_ylim(low, top)
            ax.set_axis_on() if k < len(found) else ax.set_axis_off()
            if k % columns == 0:
                ax.set_ylabel("forgetting, points")
        panel.legend(figure, groups, looks, panels=columns)
        return figure


def describe(runs: Iterable[Run | Group]) -> str:
    """What the picture shows, for readers who cannot see it."""
    parts = []
    for g in style.drawable(runs):
        tasks = g.finished[0].tasks
        if tasks > BLOCK and _known(g):
            ends = [100 * panel.last(panel.over_seeds(g, forgotten(members))[0]) for members in blocks(tasks).values()]
            told = ", ".join(f"{end:.1f}" for end in ends[:-1])
            parts.append(f"{g.label} has lost {told} points of the blocks and {ends[-1]:.1f} of all tasks at the end")
    return "Line charts of forgetting by blocks of ten tasks: " + "; ".join(parts) + "."
