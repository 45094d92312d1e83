"""One page about the paper, made from run directories: its claims and our verdicts, its tables and figures. It is a
single file without scripts or external resources, in the style of the report."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from drcl.lab.paper.contents import Paper
from drcl.lab.paper.layouts import render
from drcl.lab.paper.ledger import summary
from drcl.lab.paper.matching import of_item
from drcl.lab.paper.tables import fill
from drcl.lab.paper.verdicts import Verdict, counted
from drcl.lab.report.figures.paper import FIGURES, NotEnough
from drcl.lab.report.provenance import environment, relative
from drcl.lab.report.svg import inline_svg, variables
from drcl.lab.runs.checkpoint import replace_whole
from drcl.lab.runs.read import Run


def write_page(
    paper: Paper, runs: Sequence[Run], found: Sequence[Verdict], budget: str, path: Path, command: str
) -> Path:
    """Write the page to `path`; an older page is replaced completely or not at all."""
    html = page(paper, runs, found, budget, path, command)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_whole(path, html.encode())
    return path


def page(paper: Paper, runs: Sequence[Run], found: Sequence[Verdict], budget: str, path: Path, command: str) -> str:
    """The page as HTML. Paths of run directories are relative to `path`."""
    jinja = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    looks, mine = resources.files("drcl.lab.report.templates"), resources.files("drcl.lab.paper")
    template = jinja.from_string(mine.joinpath("page.html").read_text(encoding="utf-8"))
    filled = [fill(paper, name, runs, budget) for name in paper.tables]
    return template.render(
        title=paper.title,
        authors=paper.authors,
        css=Markup(looks.joinpath("report.css").read_text(encoding="utf-8")),
        own=Markup(mine.joinpath("page.css").read_text(encoding="utf-8")),
        light=Markup(variables(dark=False)),
        dark=Markup(variables(dark=True)),
        summary=summary(found),
        count=counted(found),
        budget=budget,
        about=paper.budgets[budget],
        stand_in=budget == "smoke",
        claims=[_claim(verdict, path.parent) for verdict in found],
        tables=[{"title": t.table.title, "html": Markup(render(t, "html")), "notes": t.notes} for t in filled],
        figures=[_figure(paper, name, runs, budget) for name in paper.figures],
        environment=environment([run for run in runs if run.finished]),
        runs=sum(run.finished for run in runs),
        command=command,
    )


def _claim(verdict: Verdict, beside: Path) -> dict[str, Any]:
    return {
        "name": verdict.claim.name,
        "says": verdict.claim.says,
        "where": verdict.claim.where,
        "verdict": verdict.verdict,
        "kind": verdict.verdict.split()[0] if verdict.verdict in ("holds", "weaker", "fails") else "open",
        "words": verdict.words,
        "seeds": verdict.seeds if verdict.runs else "–",
        "far": "; ".join(part for part in (verdict.scale, verdict.claim.far) if part),
        "command": verdict.command,
        "runs": list(dict.fromkeys(relative(run.path.parent, beside) for run in verdict.runs)),
        "settled": list(dict.fromkeys(finding.by for finding in verdict.findings if finding.by)),
    }


def _figure(paper: Paper, name: str, runs: Sequence[Run], budget: str) -> dict[str, Any]:
    known = FIGURES[name]
    mine = of_item(paper, name, runs, budget)
    told: dict[str, Any] = {
        "name": name,
        "title": known.title,
        "says": paper.figures[name],
        "caption": known.caption,
        "command": f"drcl paper run {name} --budget {budget}",
    }
    try:
        drawn = known.draw(mine)
    except NotEnough as why:
        return told | {"svg": None, "why": str(why)}
    svg = inline_svg(drawn, f"paper-{name}", known.title, known.describe(mine))
    return told | {"svg": Markup(svg), "why": ""}
