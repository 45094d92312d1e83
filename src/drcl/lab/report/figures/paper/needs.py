"""What a figure of the paper needs, and the sentence for the case that it is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from drcl.lab.report.figures import style
from drcl.lab.report.groups import Group
from drcl.lab.runs.read import Run


class NotEnough(ValueError):
    """A figure cannot be drawn from these runs; the sentence says which runs it needs."""


@dataclass(frozen=True)
class PaperFigure:
    """One figure of the paper: its name there, what it shows, what it needs and the function that draws it."""

    name: str  # its label in the paper
    title: str
    caption: str
    needs: str  # which runs, and which of their records
    draw: Callable[[Iterable[Run | Group]], Figure]
    describe: Callable[[Iterable[Run | Group]], str]


def groups_of(
    runs: Iterable[Run | Group],
    name: str,
    needs: str,
    fits: Callable[[Group], bool] = lambda g: True,
    least: int = 1,
    tasks: int = 2,
) -> list[Group]:
    """Suitable groups of finished runs over that many tasks; fewer than `least` are refused with the figure's needs."""
    found = style.drawable(runs)
    fitting = [g for g in found if g.finished[0].tasks >= tasks and fits(g)]
    if len(fitting) < least:
        raise refusal(name, needs, found, fitting)
    return fitting


def refusal(name: str, needs: str, found: Sequence[Group], fitting: Sequence[Group] = ()) -> NotEnough:
    """The sentence of a figure that cannot be drawn."""
    there = "there is no finished run" if not found else "there are " + ", ".join(g.label for g in found)
    of_these = f", of which {', '.join(g.label for g in fitting) or 'none'} will do" if found else ""
    return NotEnough(f"{name} needs {needs}; {there}{of_these}. drcl paper run {name} makes what is missing")
