"""Figure of the paper: accuracy on the first task, and on all tasks, while later ones are learned."""

from __future__ import annotations

from collections.abc import Iterable

from matplotlib.figure import Figure

from drcl.lab.report.figures import style
from drcl.lab.report.figures.paper import needs, panel
from drcl.lab.report.groups import Group, same_seeds
from drcl.lab.runs import metrics
from drcl.lab.runs.read import Run

TITLE = "The first task, and all tasks"
CAPTION = (
    "Left: accuracy on the first task after each task. Right: average accuracy on the tasks seen so far. "
    "The band is one standard deviation over seeds; only seeds that all methods have are drawn."
)
NEEDS = "finished runs of two tasks or more that were tested on all tasks seen after each task"
NAME = "plas-stab"


def draw(runs: Iterable[Run | Group]) -> Figure:
    """Two panels per benchmark, a line per method in each."""
    groups = same_seeds(needs.groups_of(runs, NAME, NEEDS, _suits))
    looks, boards = style.looks(groups), style.by_benchmark(groups)
    with style.styled():
        figure, axes = panel.grid(len(boards), 2)
        for (left, right), (benchmark, mine) in zip(axes, boards.items()):
            panel.lines(left, mine, first_task, looks, scale=100, limits=(0, 100))
            panel.lines(right, mine, all_tasks, looks, scale=100, limits=(0, 100))
            for ax, words in ((left, "accuracy on task 1, %"), (right, "average accuracy, %")):
                panel.over_tasks(ax, mine[0].finished[0].tasks)
                ax.set_ylabel(words)
                panel.title(ax, benchmark)
        panel.legend(figure, groups, looks, panels=2)
        return figure


def first_task(run: Run) -> list[float]:
    return [float(value) for value in run.matrix[:, 0]]


def all_tasks(run: Run) -> list[float]:
    return metrics.accuracy_curve(run.matrix)


def _suits(g: Group) -> bool:
    return g.method != "joint" and not any(value != value for value in first_task(g.finished[0]))


def describe(runs: Iterable[Run | Group]) -> str:
    """What the picture shows, for readers who cannot see it."""
    parts = []
    for g in same_seeds(g for g in style.drawable(runs) if _suits(g)):
        mean, _ = panel.over_seeds(g, first_task)
        whole, _ = panel.over_seeds(g, all_tasks)
        parts.append(f"{g.label} ends at {100 * mean[-1]:.1f} percent on task 1 and {100 * whole[-1]:.1f} on all tasks")
    return "Line charts of accuracy on the first task and on all tasks seen: " + "; ".join(parts) + "."
