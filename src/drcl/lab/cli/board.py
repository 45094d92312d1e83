"""Many runs at a glance: a live board on a terminal, one line per finished run elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from drcl.lab.cli.progress import State, bar
from drcl.lab.common.words import clock, percent
from drcl.lab.runs.read import Run
from drcl.lab.sweeps.sweep import Update

_BLOCKS = "▁▂▃▄▅▆▇█"
_RAMP = ("red3", "orange3", "gold3", "chartreuse3", "green3")


def strip(accuracies: Iterable[float]) -> Text:
    """Accuracy on each task as a row of blocks, oldest task first, so that forgetting is visible at a glance."""
    text = Text()
    for value in accuracies:
        if math.isnan(value):
            text.append("·", style="dim")
            continue
        share = min(max(value, 0.0), 1.0)
        text.append(_BLOCKS[round(share * 7)], style=_RAMP[min(4, int(share * 5))])
    return text


@dataclass
class Line:
    """One run on the board."""

    label: str
    directory: Path
    state: State | None = None  # None: not started
    outcome: str = ""  # "done", "there", "failed"
    reason: str = ""
    row: tuple[float, ...] = ()

    def look(self) -> None:
        """Read how accurate the run is on each task now; a run elsewhere may have no files here yet."""
        matrix = Run.read(self.directory).matrix if self.directory.is_dir() else None
        if matrix is not None and matrix.size:
            rows = matrix[~(matrix != matrix).all(axis=1)]
            self.row = tuple(rows[-1]) if len(rows) else ()

    @property
    def average(self) -> float:
        known = [value for value in self.row if not math.isnan(value)]
        return sum(known) / len(known) if known else (self.state.average if self.state else math.nan)


@dataclass
class Board:
    """The state of all runs, as a renderable."""

    lines: list[Line]
    console: Console
    title: str = ""
    began: float = field(default_factory=time.monotonic)
    live: bool = False
    expected: int = 0  # including lines to come

    def update(self, update: Update) -> None:
        """Take an update from a sweep."""
        line = self.lines[update.index]
        if update.kind == "started":
            line.state = State()
        elif update.kind == "event":
            line.state = line.state or State()
            line.state.update(update.event)
            if self.live and update.event.kind in ("evaluation", "resume"):
                line.look()
        else:
            self._ended(line, update)

    def _ended(self, line: Line, update: Update) -> None:
        line.outcome, line.reason = update.kind, update.reason
        if line.state is not None:
            line.state.ended = line.state.ended or time.monotonic()
        line.look()
        if not self.live:
            self.console.print(Text(self._plain(line)), soft_wrap=True)

    @property
    def total(self) -> int:
        return max(self.expected, len(self.lines))

    def count(self, *outcomes: str) -> int:
        return sum(line.outcome in outcomes for line in self.lines)

    # ---- drawing

    def _plain(self, line: Line) -> str:
        number = f"[{self.count('done', 'there', 'failed')}/{self.total}]"
        if line.outcome == "failed":
            return f"{number} {line.label}: failed: {line.reason}"
        took = ", there already" if line.outcome == "there" else f", {clock(line.state.seconds)}" if line.state else ""
        return f"{number} {line.label}: average accuracy {percent(line.average)}{took}"

    def __rich__(self) -> RenderableType:
        parts: list[RenderableType] = [self._head()] if self.title else []
        grid = Table.grid(padding=(0, 2))
        grid.add_column(width=1)
        grid.add_column(no_wrap=True)
        grid.add_column(width=24)
        grid.add_column(justify="right", min_width=7)
        grid.add_column()
        grid.add_column(justify="right", style="dim", min_width=6)
        if any(line.row for line in self.lines):
            grid.add_row(*(Text(word, style="dim") for word in ("", "", "", "average", "accuracy per task", "time")))
        for line in self._visible():
            grid.add_row(*self._cells(line))
        return Group(*parts, grid)

    def _head(self) -> RenderableType:
        whole = sum(1.0 if line.outcome else line.state.share if line.state else 0.0 for line in self.lines)
        ended, failed = self.count("done", "there", "failed"), self.count("failed")
        grid = Table.grid(padding=(0, 2))
        bad = Text(f"{failed} failed", style="red") if failed else Text()
        counted = Text.assemble((f"{ended}", "bold"), f" of {self.total} runs")
        time_text = Text(clock(time.monotonic() - self.began), style="dim")
        grid.add_row(Text(self.title, style="bold"), bar(whole / max(1, self.total)), counted, bad, time_text)
        return grid

    def _visible(self) -> list[Line]:
        room = max(4, self.console.height - 6)
        if len(self.lines) <= room:
            return list(self.lines)
        # Running ones come first, then the latest failures and results, in the order of the plan.
        ranked = sorted(self.lines, key=lambda line: (line.state is None, bool(line.outcome), line.outcome != "failed"))
        kept = {id(line) for line in ranked[:room]}
        return [line for line in self.lines if id(line) in kept]

    def _cells(self, line: Line) -> tuple[RenderableType, ...]:
        if line.outcome == "failed":
            return Text("✗", style="red"), Text(line.label, style="red"), "", "", Text(line.reason, style="red"), ""
        if line.outcome:
            took = clock(line.state.seconds) if line.outcome == "done" and line.state else ""
            note = Text("there already", style="dim") if line.outcome == "there" else bar(1.0, 24)
            shown = Text(percent(line.average), style="bold")
            return Text("✓", style="green"), Text(line.label), note, shown, strip(line.row), took
        if line.state is None:
            return Text("·", style="dim"), Text(line.label, style="dim"), "", "", "", ""
        shown = Text(percent(line.average) if line.row else percent(line.state.average))
        return (
            Text("▸", style="cyan"),
            Text(line.label, style="bold"),
            bar(line.state.share, 24),
            shown,
            strip(line.row),
            clock(line.state.seconds),
        )


@contextmanager
def watch_all(console: Console, lines: Sequence[Line], title: str = "") -> Iterator[Board]:
    """Show a board while the block runs."""
    board = Board(list(lines), console, title, live=console.is_terminal)
    if not board.live:
        yield board
        return
    with Live(board, console=console, refresh_per_second=8, vertical_overflow="crop"):
        yield board
