"""Figure of the paper: single updates as the gradient proposes them, and as the proximal step lets them through."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from drcl.lab.report.figures import style
from drcl.lab.report.figures.paper import needs, panel
from drcl.lab.report.groups import Group
from drcl.lab.runs.read import Run

TITLE = "Proposed and kept updates"
CAPTION = (
    "Mean update of a hundred weights at some tasks. Top: what the gradient proposes. Bottom: what the proximal "
    "step lets through. The number is the share of all weights that a step leaves exactly where they were."
)
NEEDS = "a finished run of drcl, in any of its forms, of two tasks or more with updates.csv"
NAME = "l1-loss"
COLUMNS = 5


def updates(run: Run) -> dict[int, np.ndarray]:
    """Proposed and kept updates of the picked weights, by task from the second on."""
    found: dict[int, list[tuple[float, float]]] = {}
    for row in run.records.get("updates", ()):
        if row.task > 0:
            found.setdefault(row.task, []).append((row.proposed, row.passed))
    return {task: np.array(pairs).T for task, pairs in found.items()}


def chosen(tasks: Iterable[int]) -> list[int]:
    """Some tasks, evenly spaced, the first and the last among them."""
    there = sorted(tasks)
    places = np.unique(np.linspace(0, len(there) - 1, min(COLUMNS, len(there))).round().astype(int))
    return [there[k] for k in places]


def _fits(g: Group) -> bool:
    return panel.own(g) and bool(updates(g.finished[0]))


def draw(runs: Iterable[Run | Group]) -> Figure:
    """A column per task; of several runs of DRCL the last of the table, which is its best, with its first seed."""
    group = needs.groups_of(runs, NAME, NEEDS, _fits)[-1]
    run = group.finished[0]
    found = updates(run)
    tasks, still = chosen(found), run.per_task("still")
    with style.styled():
        figure, axes = panel.grid(2, len(tasks), width=2.1, height=1.7)
        reach = 1.05 * max(float(np.abs(found[task]).max()) for task in tasks) or 1.0
        unit = 10.0 ** math.floor(math.log10(reach))
        for k, (row, words) in enumerate(zip(axes, ("proposed", "let through"))):
            for ax, task in zip(row, tasks):
                _stems(ax, found[task][k] / unit, reach / unit, first=task == tasks[0])
                if k == 0:
                    panel.title(ax, f"task {task + 1}")
                elif still[task] == still[task]:
                    ax.set_xlabel(f"{100 * still[task]:.0f} % left in place")
            row[0].set_ylabel(f"{words}, {unit:.0e}")
        figure.suptitle(f"{group.label}, {group.benchmark}: updates of {found[tasks[0]].shape[1]} weights", fontsize=9)
        return figure


def _stems(ax: Axes, values: np.ndarray, reach: float, first: bool) -> None:
    blue = style.looks([Group("", panel.OWN, panel.OWN, ())])[panel.OWN].colour
    ax.vlines(np.arange(len(values)), 0, values, color=blue, linewidth=1.1)
    ax.axhline(0, color=style.MUTED.light, linewidth=0.5)
    ax.set_ylim(-reach, reach)
    ax.set_xlim(-2, len(values) + 1)
    ax.set_xticks([])
    ax.spines["bottom"].set_visible(False)
    if not first:
        ax.set_yticklabels([])


def describe(runs: Iterable[Run | Group]) -> str:
    """What the picture shows, for readers who cannot see it."""
    parts = []
    for g in style.drawable(runs):
        if _fits(g):
            found = updates(g.finished[0])
            for task in chosen(found):
                proposed, kept = np.abs(found[task]).sum(axis=1)
                share = f"{100 * kept / proposed:.0f} percent" if proposed else "nothing"
                parts.append(f"{g.label} lets {share} of the proposals through at task {task + 1}")
    return "Single updates, proposed and let through: " + "; ".join(parts) + "."
