"""The command line: one Typer application that gathers the commands; what they do is elsewhere."""

from __future__ import annotations

import typer

from drcl.lab.cli import datasets as data
from drcl.lab.cli import demonstration, listing, results, run, sweeping, tuning

app = typer.Typer(
    name="drcl",
    help="Train task after task without forgetting. Start with: drcl demo",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(demonstration.demo)
app.command()(run.run)
app.command()(sweeping.sweep)
app.command()(tuning.tune)
app.command("list")(listing.list_)
app.command()(results.report)
app.command()(results.table)
app.command()(results.figures)
app.add_typer(data.app, name="data")


@app.command()
def version() -> None:
    """Print the versions that matter when a result is to be repeated."""
    import platform

    import numpy
    import torch

    import drcl

    typer.echo(f"drcl {drcl.__version__} (Python {platform.python_version()}, torch {torch.__version__}, ", nl=False)
    typer.echo(f"numpy {numpy.__version__})")
