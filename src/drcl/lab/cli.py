"""The command line: one Typer application, one sub-application a topic."""

from __future__ import annotations

import typer

from drcl.lab.data import commands as data

app = typer.Typer(name="drcl", help="Train task after task without forgetting.", no_args_is_help=True)
app.add_typer(data.app, name="data")
