"""Show the events of a run: as two live bars on a terminal, as plain lines elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from drcl.lab.common.words import clock, percent
from drcl.lab.training.events import Event


@dataclass
class State:
    """Where one run is, gathered from its events."""

    tasks: int = 0
    done: int = 0  # tasks learned and evaluated
    task: int = 0
    part: float = 0.0  # of the current task
    epoch: int | None = None
    epochs: int | None = None
    loss: float = math.nan
    average: float = math.nan
    phase: str = "starting"
    began: float = field(default_factory=time.monotonic)
    ended: float | None = None

    def update(self, event: Event) -> None:
        self.tasks = event.tasks or self.tasks
        if event.task is not None and event.task != self.task:
            self.task, self.part, self.epoch = event.task, 0.0, None
        self.epochs = event.epochs or self.epochs
        if event.epoch is not None:
            self.epoch = event.epoch
        if event.loss is not None:
            self.loss = event.loss
        if event.average_accuracy is not None:
            self.average = event.average_accuracy
        if event.kind in ("step", "epoch") and event.step is not None and event.steps:
            self.part = min(1.0, event.step / event.steps)
        if event.kind == "evaluation" and event.average_accuracy is not None:
            self.done, self.part = self.task + 1, 1.0
        if event.kind == "resume":
            self.done = max(self.done, self.task)
        if event.kind == "finish":
            self.done = self.tasks
            self.ended = time.monotonic()
        words = {"consolidation": "consolidating", "evaluation": "evaluating", "finish": "done"}
        self.phase = words.get(event.kind, "training")

    @property
    def share(self) -> float:
        """How much of the run is done, 0 to 1; within a task by its steps."""
        if not self.tasks:
            return 0.0
        inside = self.part if self.done <= self.task else 0.0
        return min(1.0, (self.done + inside) / self.tasks)

    @property
    def seconds(self) -> float:
        return (self.ended or time.monotonic()) - self.began


def bar(share: float, width: int = 32) -> ProgressBar:
    return ProgressBar(total=1.0, completed=share, width=width, complete_style="cyan", finished_style="green")


class _Bars:
    """The live picture of one run; rich draws it again and again."""

    def __init__(self, title: str, state: State) -> None:
        self.title, self.state = title, state

    def __rich__(self) -> RenderableType:
        s = self.state
        grid = Table.grid(padding=(0, 2))
        grid.add_column(width=6, style="dim")
        grid.add_column(width=36)
        grid.add_column(width=12)
        grid.add_column()
        counted = f"{s.done} of {s.tasks}" if s.tasks else ""
        average = Text.assemble(("average accuracy ", "dim"), (percent(s.average), "bold"))
        grid.add_row("tasks", bar(s.share, 36), counted, average)
        if s.ended is None:
            epochs = f"epoch {s.epoch + 1}/{s.epochs}" if s.epoch is not None and s.epochs else ""
            loss = "–" if math.isnan(s.loss) else f"{s.loss:.4f}"
            last = Text.assemble(("loss ", "dim"), loss) if s.phase == "training" else Text(s.phase, style="dim")
            grid.add_row(f"task {min(s.task + 1, s.tasks or 1)}", bar(s.part, 36), epochs, last)
        head = Text.assemble((self.title, "bold"), (f"   {clock(s.seconds)}", "dim"))
        return Group(head, grid)


def _plain(console: Console, title: str, state: State) -> Callable[[Event], None]:
    console.print(title)

    def show(event: Event) -> None:
        before = state.done
        state.update(event)
        if event.kind == "resume":
            console.print(f"  continuing from task {state.task + 1} of {state.tasks}")
        elif event.kind == "evaluation" and state.done > before:
            loss = "" if math.isnan(state.loss) else f", loss {state.loss:.4f}"
            average = percent(state.average)
            console.print(
                f"  task {state.done} of {state.tasks}: average accuracy {average}{loss}, {clock(state.seconds)}"
            )

    return show


@contextmanager
def watch(console: Console, title: str) -> Iterator[Callable[[Event], None]]:
    """Show one run while it is running; yields the function that takes its events."""
    state = State()
    if not console.is_terminal:
        yield _plain(console, title, state)
        return
    with Live(_Bars(title, state), console=console, refresh_per_second=8, transient=False):
        yield state.update
