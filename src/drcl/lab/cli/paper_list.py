"""``drcl paper list``: the parts of the paper, what each needs, and how long it would take on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from drcl.lab.cli.arguments import Data
from drcl.lab.cli.terminal import console
from drcl.lab.paper.contents import BUDGETS, Paper
from drcl.lab.paper.contents import paper as contents
from drcl.lab.paper.estimate import Speeds, estimated
from drcl.lab.paper.plan import missing_data, plan


def list_(
    again: Annotated[bool, typer.Option("--again", help="Measure this machine's speed again.")] = False,
    data: Data = None,
) -> None:
    """List every table, figure, ablation and claim, with the data it needs, its runs and the hours they take."""
    paper, here = contents(), console()
    speeds = Speeds()
    if again:
        speeds.known.clear()
    here.print(Text.assemble((paper.title, "bold"), (f"  {paper.authors}", "dim")), soft_wrap=True)
    if here.is_terminal and not speeds.known:
        here.print(Text("measuring a few training steps of each network", style="dim"))
    here.print(_items(paper, speeds, data))
    here.print(_claims(paper))


def _kind(paper: Paper, item: str) -> str:
    return "table" if item in paper.tables else "figure" if item in paper.figures else "ablation"


def _items(paper: Paper, speeds: Speeds, data: Path | None) -> RenderableType:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), header_style="bold")
    table.add_column("name", no_wrap=True)
    table.add_column("", style="dim")
    table.add_column("needs")
    for budget in BUDGETS:
        table.add_column(f"{budget}\nruns, time", justify="right", no_wrap=True)
    for item in paper.items:
        table.add_row(
            Text(item, style="bold"),
            _kind(paper, item),
            _needs(paper.experiment_of(item).benchmarks, data),
            *(_size(paper, item, budget, speeds) for budget in BUDGETS),
        )
    words = [
        "✓ the data are here. ✗ they are not: drcl data list says how to get them. Runs that two items share are made "
        "once.",
        "Times assume one run after the other: the time of a few steps of each network, measured here, multiplied by "
        "its number of steps. They are right within a factor of two at best.",
    ]
    return Group(table, *(Padding(Text(word, style="dim"), (0, 1)) for word in words))


def _needs(benchmarks: Sequence[str], data: Path | None) -> Text:
    marks = {name: (" ✗", "yellow") if missing_data(name, data) else (" ✓", "green") for name in benchmarks}
    return Text(", ").join([Text.assemble(name, mark) for name, mark in marks.items()])


def _size(paper: Paper, item: str, budget: str, speeds: Speeds) -> Text:
    found = plan(paper, [item], budget, skip=False)
    return Text.assemble(f"{len(found.configs)}", (f"  {estimated(paper, found, speeds)}", "dim"))


def _claims(paper: Paper) -> RenderableType:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), header_style="bold")
    table.add_column("claim", no_wrap=True)
    table.add_column("what it says")
    table.add_column("needs", no_wrap=True)
    for claim in paper.claims.values():
        needs = next((item for item, name in paper.items.items() if name == claim.experiment), "")
        by = next((rule.get("by") or "the solver study" for rule in claim.rules), "")
        table.add_row(Text(claim.name, style="bold"), claim.says, needs or Text(by, style="dim"))
    hint = Text.assemble(("drcl paper verdicts", "bold"), (" judges each claim from the existing runs", "dim"))
    return Group(table, Padding(hint, (0, 1)))
