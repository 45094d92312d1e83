"""The verdicts as text: for a terminal, and for the part of docs/paper.md between its marks."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from drcl.lab.paper.contents import Paper
from drcl.lab.paper.verdicts import Verdict, counted

STYLE = {"holds": "green", "weaker": "yellow", "fails": "red", "not testable here": "dim", "not run": "dim"}
_SAID = {"holds": "hold", "weaker": "are weaker", "fails": "fail"}
START, END = "<!-- verdicts -->", "<!-- end -->"


def summary(found: Sequence[Verdict]) -> str:
    """``40 claims: 4 hold, 4 are weaker, ...``"""
    count = counted(found)
    parts = [f"{count[word]} {_SAID.get(word, word)}" for word in STYLE if word in count]
    return f"{len(found)} claims: " + ", ".join(parts)


def rich_ledger(found: Sequence[Verdict]) -> RenderableType:
    """For ``Console.print``: the verdict, the claim with what was found, and the command to run it."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), header_style="bold")
    table.add_column("verdict", no_wrap=True)
    table.add_column("claim")
    table.add_column("seeds", justify="right")
    for verdict in found:
        text = Text.assemble((verdict.claim.says, "bold"), (f"\n{verdict.claim.where}", "dim"))
        if verdict.words:
            text.append(f"\n{verdict.words}")
        if verdict.scale:
            text.append(f" ({verdict.scale})", style="dim")
        text.append(f"\n{verdict.command}", style="cyan")
        word = Text(verdict.verdict, style=STYLE[verdict.verdict])
        table.add_row(word, text, str(verdict.seeds) if verdict.runs else "–")
    return Group(table, Padding(Text(summary(found), style="bold"), (0, 1)))


def markdown(paper: Paper, found: Sequence[Verdict], beside: Path = Path()) -> str:
    """One row per claim; links to run directories and pages are relative to the folder `beside`."""
    lines = [
        f"*{paper.title}* ({paper.authors}). {summary(found)}.",
        "",
        "| verdict | claim, and where it stands | what was found; how far from the paper's setting; runs and command |",
        "|---|---|---|",
    ]
    for verdict in found:
        claim = verdict.claim
        seeds = f"{verdict.seeds} seed{'s' if verdict.seeds > 1 else ''}" if verdict.runs else ""
        setting = "; ".join(part for part in (seeds, verdict.scale, claim.far) if part)
        told = [verdict.words, setting and f"*{setting}*", _evidence(verdict, beside)]
        cells = [
            f"**{verdict.verdict}**",
            f"{claim.says}<br>*{claim.where}*",
            "<br>".join(part for part in told if part),
        ]
        lines.append("| " + " | ".join(_md(cell) for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _evidence(verdict: Verdict, beside: Path) -> str:
    folders = dict.fromkeys(_relative(run.path.parent, beside) for run in verdict.runs)
    links = [f"[{Path(folder).name}]({folder})" for folder in folders]
    links += [f"[{page}]({page})" for page in verdict.pages]
    settled = [f"`{finding.by}`" for finding in verdict.findings if finding.by]
    return ", ".join(dict.fromkeys([*links, *settled, f"`{verdict.command}`"]))


def _relative(path: Path, beside: Path) -> str:
    return Path(os.path.relpath(path.resolve(), beside.resolve())).as_posix()


def _md(text: str) -> str:
    return re.sub(r"(?<!\\)\|", r"\\|", text.replace("\n", " "))


def placed(page: str, text: str) -> str:
    """The page with `text` between its marks; raises if it has none."""
    start, end = page.find(START), page.find(END, page.find(START))
    if start < 0 or end < 0:
        raise ValueError(f"the page has no place for it: write {START} and {END} on lines of their own")
    return f"{page[: start + len(START)]}\n{text.strip()}\n{page[end:]}"
