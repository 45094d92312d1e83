"""``drcl demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from drcl.lab.cli.terminal import FAILURE, INTERRUPTED, console, fail, told


def demo(
    out: Annotated[Path, typer.Option("--out", help="Folder for the page and the runs.")] = Path("demo"),
    seeds: Annotated[int | None, typer.Option("--seeds", min=1, help="How many seeds, instead of the usual.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Run anew, even what is there already.")] = False,
) -> None:
    """See it work: SGD, EWC and DRCL on eight small tasks, in a few minutes and without a download."""
    from drcl.lab.cli.demo import Demo

    here = console()
    try:
        with told(FAILURE):
            chosen = Demo.read(out, seeds)
            if again:
                chosen.forget()
            outcome = chosen.show(here)
    except KeyboardInterrupt:
        here.print(Text("stopped; drcl demo goes on from there", style="yellow"))
        raise typer.Exit(INTERRUPTED) from None
    for job, why in outcome.failed:
        here.print(Text.assemble(("failed  ", "red"), (job.config.name, "bold"), f": {why}"), soft_wrap=True)
    if outcome.failed:
        fail(f"{len(outcome.failed)} of {len(chosen.plan)} runs failed")
