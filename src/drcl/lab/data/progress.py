"""Progress bars on the terminal, and silence everywhere else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)


@contextmanager
def bar(what: str, total: int | None, unit: str = "items") -> Iterator[Callable[[int], None]]:
    """Show ``what`` advancing to ``total`` (``None``: unknown); yields the function that advances it."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda step: None
        return
    count = DownloadColumn() if unit == "bytes" else MofNCompleteColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), count, TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda step: progress.advance(task, step)
