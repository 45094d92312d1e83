"""``drcl report``, ``table`` and ``figures``: what is made from run directories."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from drcl.lab.cli.terminal import FAILURE, USAGE, console, fail, told
from drcl.lab.report.formats import render, rich_table
from drcl.lab.report.table import rows
from drcl.lab.runs.read import Run, find

Runs = Annotated[list[Path], typer.Argument(help="Run directories, or directories that hold some.")]


class Format(StrEnum):
    text = "text"
    markdown = "markdown"
    csv = "csv"
    latex = "latex"


class Picture(StrEnum):
    svg = "svg"
    png = "png"


def found(paths: Sequence[Path]) -> list[Run]:
    """The runs at or below `paths`; none at all is an error, because an empty table helps nobody."""
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
    """Write a page that explains itself: table, curves, matrices, drift and cost in one HTML file."""
    from drcl.lab.report.page import write_report

    chosen = found(runs)
    with told(FAILURE, OSError):
        path = write_report(chosen, output, title=title)
    finished = sum(run.finished for run in chosen)
    words = f" compares {finished} finished of {len(chosen)} runs"
    console().print(Text.assemble((str(path), "bold"), words), soft_wrap=True)


def table(
    runs: Runs,
    format: Annotated[Format, typer.Option("--format", "-f", help="How to write it.")] = Format.text,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write it to a file.")] = None,
) -> None:
    """Print the comparison: one row a method, mean and deviation over seeds, cost beside accuracy."""
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
        typer.echo(render(computed, format), nl=False)


def figures(
    runs: Runs,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the figures.")] = Path("figures"),
    format: Annotated[
        list[Picture] | None, typer.Option("--format", "-f", help="File format; may be given several times.")
    ] = None,
) -> None:
    """Save every figure: accuracy, forgetting, matrices, drift and accuracy against cost."""
    from drcl.lab.report.figures import save_all

    chosen = found(runs)
    with told(FAILURE, OSError, ValueError):
        files = save_all(chosen, output, [str(each) for each in format or (Picture.svg, Picture.png)])
    for file in files:
        typer.echo(file)
