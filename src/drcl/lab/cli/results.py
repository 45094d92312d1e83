"""``drcl report``, ``table``, ``figures``, ``verify``, ``pack``, ``unpack``: read runs, check and keep them."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from drcl.lab.cli.terminal import FAILURE, USAGE, console, fail, say, told
from drcl.lab.report.formats import render, rich_table
from drcl.lab.report.table import rows
from drcl.lab.runs import pack as packs
from drcl.lab.runs.read import Run, find
from drcl.lab.runs.verify import verify as check

Runs = Annotated[list[Path], typer.Argument(help="Run directories, packs, or folders that contain them.")]


class Format(StrEnum):
    text = "text"
    markdown = "markdown"
    csv = "csv"
    latex = "latex"


class Picture(StrEnum):
    svg = "svg"
    png = "png"


def found(paths: Sequence[Path]) -> list[Run]:
    """The runs at or below `paths`; finding none is an error, because an empty table helps nobody."""
    with told(USAGE, FileNotFoundError):
        runs = find(paths)
    if not runs:
        fail(f"there is no run in {', '.join(map(str, paths))}; drcl run makes one", USAGE)
    return runs


def report(
    runs: Runs,
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path("report.html"),
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
) -> None:
    """Write a report: table, curves, matrices, drift and cost in one HTML file."""
    from drcl.lab.report.page import write_report

    chosen = found(runs)
    with told(FAILURE, OSError):
        path = write_report(chosen, output, title=title)
    finished = sum(run.finished for run in chosen)
    words = f" compares {finished} finished of {len(chosen)} runs"
    console().print(Text.assemble((str(path), "bold"), words), soft_wrap=True)


def table(
    runs: Runs,
    format: Annotated[Format, typer.Option("--format", "-f", help="Output format.")] = Format.text,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file.")] = None,
) -> None:
    """Print a table: one row per method, mean and deviation over seeds, accuracy and cost."""
    computed = rows(found(runs))
    if output is not None:
        with told(FAILURE, OSError):
            output.parent.mkdir(parents=True, exist_ok=True)
            output.write_text(render(computed, format), encoding="utf-8")
        return
    here = console()
    if format is Format.text and here.is_terminal:
        here.print(rich_table(computed))
    else:
        say(render(computed, format), end="")


def figures(
    runs: Runs,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the figures.")] = Path("figures"),
    format: Annotated[
        list[Picture] | None, typer.Option("--format", "-f", help="File format; may be repeated.")
    ] = None,
) -> None:
    """Save every figure: accuracy, forgetting, matrices, drift, accuracy against cost, and the paper's figures."""
    from drcl.lab.report.figures import save_all

    chosen = found(runs)
    with told(FAILURE, OSError, ValueError):
        files = save_all(chosen, output, [str(each) for each in format or (Picture.svg, Picture.png)])
    for file in files:
        say(file)


_COLOURS = {
    "whole": "green",
    "unfinished": "yellow",
    "running": "cyan",
    "no digests stored": "yellow",
    "damaged": "red",
}


def verify(runs: Runs) -> None:
    """Check every file of every run against its digest, and say which runs are intact."""
    verdicts = [check(run) for run in found(runs)]
    here = console()
    for verdict in verdicts:
        words = f": {'; '.join(verdict.words)}" if verdict.words else ""
        told_as = (verdict.state, _COLOURS[verdict.state])
        here.print(Text.assemble((f"{verdict.path}  ", "bold"), told_as, words), soft_wrap=True)
    states = [verdict.state for verdict in verdicts]
    counts = ", ".join(f"{states.count(state)} {state}" for state in _COLOURS if state in states)
    here.print(Text(counts, style="dim"))
    if "damaged" in states:
        fail("damaged runs are not counted; drcl run, or the sweep they belong to, will run them again", FAILURE)


def pack(
    runs: Runs,
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write, NAME.jsonl.")],
) -> None:
    """Put finished runs into one text file, without weights and checkpoints; other commands read it like a folder."""
    chosen = found(runs)
    for run in chosen:
        if not run.finished:
            fail(f"{run.path} is {run.status}; a pack holds finished runs only", USAGE)
    if output.suffix != packs.SUFFIX:
        fail(f"{output} is not a name for a pack; give a name that ends in {packs.SUFFIX}", USAGE)
    with told(FAILURE, OSError, ValueError):
        packs.write(output, [packs.of(run.path) for run in chosen])
    console().print(Text.assemble((str(output), "bold"), f" holds {len(chosen)} runs"), soft_wrap=True)


def unpack(
    runs: Annotated[list[Path], typer.Argument(help="Packs, NAME.jsonl.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the run directories.")],
) -> None:
    """Make run directories from packs again, so that a sweep continues without repeating their runs."""
    for path in runs:
        if not packs.is_pack(path):
            fail(f"{path} is not a pack; drcl pack makes one", USAGE)
    chosen = found(runs)
    for run in chosen:
        if not run.finished:
            fail(f"{run.path} is {run.status}; nothing was written", FAILURE)
    new = [run for run in chosen if not (output / run.path.name).exists()]
    with told(FAILURE, OSError):
        for run in new:
            packs.of(run.path).write(output)
    there = f", {len(chosen) - len(new)} more were already there" if len(new) < len(chosen) else ""
    console().print(Text.assemble((str(output), "bold"), f": {len(new)} runs written{there}"), soft_wrap=True)
