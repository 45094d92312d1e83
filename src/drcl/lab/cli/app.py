"""The command line: one Typer application that gathers the commands. Each command is in its own file.

Modules that draw (``report.page``, ``paper.page`` and ``report.figures``) are imported only by the command that needs
them: matplotlib takes longer to load than the whole laboratory, and ``drcl --help`` should not wait for it.
"""

from __future__ import annotations

import platform
from typing import Annotated

import numpy
import torch
import typer

import drcl
from drcl.lab.cli import data, demo, listing, paper, results, run, sweep, tune
from drcl.lab.cli.terminal import prepare

app = typer.Typer(
    name="drcl",
    help="Train task after task without forgetting. Start with: drcl demo",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(demo.demo)
app.command()(run.run)
app.command()(sweep.sweep)
app.command()(tune.tune)
app.command("list")(listing.list_)
app.command()(results.report)
app.command()(results.table)
app.command()(results.figures)
app.command()(results.verify)
app.command()(results.pack)
app.command()(results.unpack)
app.add_typer(data.app, name="data")
app.add_typer(paper.app, name="paper")


def start() -> None:
    """The entry point for the shell."""
    prepare()
    app()


def _version(asked: bool) -> None:
    if asked:
        version()
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the versions and exit.")
    ] = False,
) -> None:
    """Train task after task without forgetting. Start with: drcl demo"""


@app.command()
def version() -> None:
    """Print the versions that matter for repeating a result."""
    typer.echo(f"drcl {drcl.__version__} (Python {platform.python_version()}, torch {torch.__version__}, ", nl=False)
    typer.echo(f"numpy {numpy.__version__})")
