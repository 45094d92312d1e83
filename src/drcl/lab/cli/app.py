"""The command line: one Typer application that gathers the commands; each is in a file of its own.

Whatever draws (``report.page`` and ``report.figures``) is imported by the command that needs it and not before:
matplotlib takes longer to load than the whole laboratory, and ``drcl --help`` should not wait for it.
"""

from __future__ import annotations

import platform

import numpy
import torch
import typer

import drcl
from drcl.lab.cli import data, demo, listing, results, run, sweep, tune

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
app.add_typer(data.app, name="data")


@app.command()
def version() -> None:
    """Print the versions that matter when a result is to be repeated."""
    typer.echo(f"drcl {drcl.__version__} (Python {platform.python_version()}, torch {torch.__version__}, ", nl=False)
    typer.echo(f"numpy {numpy.__version__})")
