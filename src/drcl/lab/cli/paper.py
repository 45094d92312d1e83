"""``drcl paper``: the paper's tables, figures, ablations and claims, one command for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from drcl.lab.cli import paper_list
from drcl.lab.cli.arguments import Data, Options, parsed
from drcl.lab.cli.board import Board, Line, watch_all
from drcl.lab.cli.terminal import FAILURE, USAGE, console, fail, stoppable, told
from drcl.lab.paper import ledger, tuning
from drcl.lab.paper.contents import Paper
from drcl.lab.paper.contents import paper as contents
from drcl.lab.paper.layouts import render, rich_table
from drcl.lab.paper.matching import of_item
from drcl.lab.paper.plan import Plan, plan
from drcl.lab.paper.studies import studies
from drcl.lab.paper.tables import fill
from drcl.lab.paper.verdicts import Verdict, verdicts
from drcl.lab.runs.read import Run, find
from drcl.lab.sweeps import sweep, workers
from drcl.lab.sweeps.cluster import ClusterError, on_ray
from drcl.lab.sweeps.names import labels
from drcl.lab.sweeps.sweep import Job, Tell, Update

app = typer.Typer(name="paper", help="Run the paper's tables and figures, and judge its claims.", no_args_is_help=True)
app.command("list")(paper_list.list_)

PLACE = Path("runs/paper")


class Budget(StrEnum):
    smoke = "smoke"
    small = "small"
    paper = "paper"


class TableFormat(StrEnum):
    text = "text"
    markdown = "markdown"
    latex = "latex"
    html = "html"


class LedgerFormat(StrEnum):
    text = "text"
    markdown = "markdown"


Size = Annotated[
    Budget, typer.Option("--budget", "-b", help="smoke: on the built-in digits; small: half width; paper: everything.")
]
Runs = Annotated[
    list[Path] | None,
    typer.Argument(
        help="Run directories, or folders that contain them; by default runs/paper/BUDGET.", show_default=False
    ),
]
Where = Annotated[
    list[Path] | None,
    typer.Option("--runs", help="Folder with runs; may be repeated. By default runs/paper/BUDGET."),
]


def gathered(paths: Sequence[Path] | None, budget: Budget) -> list[Run]:
    """The runs of these folders. The default folder may be missing; a folder that was named may not."""
    usual = PLACE / budget
    if not paths:
        return find([usual]) if usual.is_dir() else []
    with told(USAGE, FileNotFoundError):
        return find(paths)


# ---- run


@app.command()
def run(
    items: Annotated[
        list[str], typer.Argument(help="Tables, figures or ablations, by their names in `drcl paper list`; or all.")
    ],
    budget: Size = Budget.small,
    jobs: Annotated[int | None, typer.Option("--jobs", "-j", min=1, help="Number of runs at the same time.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for the runs; by default runs/paper/BUDGET.")
    ] = None,
    rows: Annotated[str | None, typer.Option("--rows", help="Only these rows, separated by commas.")] = None,
    benchmarks: Annotated[
        str | None, typer.Option("--benchmarks", help="Only these benchmarks, separated by commas.")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option("--seeds", min=1, help="Number of seeds, instead of the budget's.")
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option("--tune", min=0, help="Trials to choose each strength first; 0 keeps the file's strengths."),
    ] = None,
    option: Options = None,
    cluster: Annotated[str | None, typer.Option("--cluster", help="Run on Ray: its address, auto, or local.")] = None,
    shared: Annotated[bool, typer.Option("--shared", help="All machines can see the folder of --out.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the runs, without running them.")] = False,
    data: Data = None,
) -> None:
    """Make the runs of a table, figure or ablation. Repeat the command to continue after an interruption."""
    paper, here, place = contents(), console(), out or PLACE / budget
    chosen = list(paper.items) if "all" in items else items
    given: dict[str, Any] = parsed(option or [])
    pick = [[name.strip() for name in (text or "").split(",") if name.strip()] for text in (rows, benchmarks)]
    with told(USAGE, ValueError, TypeError, OSError):
        first = plan(paper, chosen, budget, given, data, seeds=seeds, rows=pick[0]).only(pick[1])
        searches = list(tuning.searches(paper, chosen, budget, place, trials, given, data, pick[0]))
        searches = [s for s in searches if not pick[1] or s.benchmark in pick[1]]
    _opening(here, paper, first, budget, searches)
    if not first.configs:
        fail("none of the data it needs are here; drcl data list shows what there is", FAILURE)
    if dry_run:
        for job in sweep.jobs(first.configs, place, data):
            state = "finished" if job.finished else "to do"
            here.print(Text.assemble(job.config.name, (f"  {state}", "dim")), soft_wrap=True)
        return
    at_once = jobs or 1
    with stoppable(lambda: "stopped; the same command continues from there"):
        strengths = _tuned(here, searches, at_once)
        with told(USAGE, ValueError, TypeError):
            todo = sweep.jobs(
                plan(paper, chosen, budget, given, data, strengths, seeds, rows=pick[0]).only(pick[1]).configs,
                *(place, data),
            )
        outcome = _sweep(here, todo, at_once, cluster, shared, jobs, quick=budget is Budget.smoke)
    _close(here, paper, chosen, budget, place, outcome, own=out is not None)
    if outcome.failed:
        fail(f"{len(outcome.failed)} of {len(todo)} runs failed", FAILURE)


def _opening(here: Console, paper: Paper, planned: Plan, budget: Budget, searches: Sequence[tuning.Search]) -> None:
    here.print(Text.assemble((f"budget {budget}: ", "bold"), f"{paper.budgets[budget]}"), soft_wrap=True)
    for benchmark, why in planned.skipped.items():
        here.print(Text.assemble(("skipped    ", "yellow"), (benchmark, "bold"), f": {why}"), soft_wrap=True)
    for benchmark, place in planned.stand_ins.items():
        here.print(
            Text.assemble(("stand-in   ", "yellow"), f"{place} in place of ", (benchmark, "bold")), soft_wrap=True
        )
    if searches:
        trials = sum(search.tuning.budget for search in searches)
        of = "strength of one row" if len(searches) == 1 else f"strengths of {len(searches)} rows"
        here.print(Text(f"{trials} trials choose the {of} first", style="dim"))


def _tuned(here: Console, searches: Sequence[tuning.Search], at_once: int) -> dict[tuple[str, str], dict[str, Any]]:
    if not searches:
        return {}
    backend = workers.here if at_once == 1 else workers.processes(at_once)
    with told(FAILURE), watch_all(here, [], "strengths") as board:
        board.expected = sum(search.tuning.budget for search in searches)
        return tuning.tune(searches, backend, lambda search, jobs: _on(board, search, jobs))


def _on(board: Board, search: tuning.Search, jobs: Sequence[Job]) -> Tell:
    first = len(board.lines)
    for job in jobs:
        value = job.config.method_options[search.key]
        board.lines.append(Line(f"{search.benchmark} · {search.row} {search.key}={value:g}", job.directory))

    def tell(update: Update) -> None:
        board.update(replace(update, index=first + update.index))

    return tell


def _sweep(
    here: Console, todo: Sequence[Job], at_once: int, cluster: str | None, shared: bool, jobs: int | None, quick: bool
) -> sweep.Outcome:
    # Runs that take seconds are not worth their own process, unless the user asks for several at a time.
    backend = workers.here if quick and jobs is None else workers.processes(at_once)
    if cluster is not None:
        with told(FAILURE, ClusterError):
            backend = on_ray(cluster, shared=shared, at_once=jobs)
    named = labels([job.config for job in todo])
    with told(FAILURE), watch_all(here, [Line(n, j.directory) for n, j in zip(named, todo)], "drcl paper") as board:
        return sweep.run(todo, backend, board.update)


def _close(
    here: Console, paper: Paper, items: Sequence[str], budget: Budget, place: Path, outcome: sweep.Outcome, own: bool
) -> None:
    runs = [Run.read(job.directory) for job in (*outcome.done, *outcome.there)]
    for item in items:
        if item in paper.tables and runs:
            here.print()
            here.print(rich_table(fill(paper, item, runs, budget), here.width))
    for job, why in outcome.failed:
        here.print(Text.assemble(("failed     ", "red"), (job.config.name, "bold"), f": {why}"), soft_wrap=True)
    where = f" --runs {place}" if own else ""
    here.print(Text.assemble(("results    ", "dim"), (f"{place}/", "bold")), soft_wrap=True)
    for item in items[:1]:
        verb = "show" if item in paper.tables else "figure"
        if item not in paper.ablations:
            here.print(Text.assemble(("next       ", "dim"), f"drcl paper {verb} {item} --budget {budget}{where}"))
    here.print(Text.assemble(("claims     ", "dim"), f"drcl paper verdicts {place}"), soft_wrap=True)


# ---- what is made of runs


@app.command()
def show(
    table: Annotated[str, typer.Argument(help="table1 or table2.")],
    budget: Size = Budget.small,
    format: Annotated[TableFormat, typer.Option("--format", "-f", help="Output format.")] = TableFormat.text,
    runs: Where = None,
) -> None:
    """Print a table in the paper's layout, with the printed number next to ours, and a dash where nothing was run."""
    paper = contents()
    if table not in paper.tables:
        fail(f"{table!r} is not a table of the paper: choose {' or '.join(paper.tables)}", USAGE)
    filled = fill(paper, table, gathered(runs, budget), budget)
    here = console()
    if format is TableFormat.text and here.is_terminal:
        here.print(rich_table(filled, here.width))
    else:
        typer.echo(render(filled, format), nl=False)


@app.command()
def figure(
    name: Annotated[str, typer.Argument(help="A name from `drcl paper list`.")],
    budget: Size = Budget.small,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File, .svg or .png; by default NAME.svg.")
    ] = None,
    runs: Where = None,
) -> None:
    """Draw a figure of the paper from runs."""
    from drcl.lab.report.figures.paper import FIGURES, draw
    from drcl.lab.report.figures.style import save

    paper = contents()
    if name not in paper.figures:
        fail(f"{name!r} is not a figure of the paper: choose one of {', '.join(paper.figures)}", USAGE)
    mine = of_item(paper, name, gathered(runs, budget), budget)
    with told(FAILURE, ValueError, OSError):  # with too few runs, the error says which are needed
        path = save(draw(name, mine), output or Path(f"{name}.svg"))
    console().print(
        Text.assemble((str(path), "bold"), f"  {FIGURES[name].title}, from {sum(len(g.runs) for g in mine)} runs"),
        soft_wrap=True,
    )


def judged(paths: Sequence[Path] | None, budget: Budget, data: Path | None) -> tuple[list[Run], list[Verdict]]:
    """The runs, and the verdict on each claim."""
    found = gathered(paths, budget)
    return found, verdicts(contents(), found, studies(paths or []), data)


@app.command("verdicts")
def verdicts_(
    runs: Runs = None,
    budget: Size = Budget.small,
    format: Annotated[LedgerFormat, typer.Option("--format", "-f", help="Output format.")] = LedgerFormat.text,
    into: Annotated[
        Path | None, typer.Option("--into", help="Write the Markdown between the marks in this file.")
    ] = None,
    data: Data = None,
) -> None:
    """Judge each claim by rules, from run directories: holds, weaker, fails, not testable here, or not run."""
    _, found = judged(runs, budget, data)
    if into is not None:
        with told(FAILURE, OSError, ValueError):
            text = ledger.markdown(contents(), found, into.parent)
            into.write_text(ledger.placed(into.read_text(encoding="utf-8"), text), encoding="utf-8")
        typer.echo(f"{into}: {ledger.summary(found)}")
    elif format is LedgerFormat.markdown:
        typer.echo(ledger.markdown(contents(), found), nl=False)
    else:
        console().print(ledger.rich_ledger(found))


@app.command()
def page(
    runs: Runs = None,
    budget: Size = Budget.small,
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path("paper.html"),
    data: Data = None,
) -> None:
    """Write one page with the paper's claims and their verdicts, its tables and its figures, made from runs."""
    from drcl.lab.paper.page import write_page

    mine, found = judged(runs, budget, data)
    command = " ".join(["drcl paper page", *map(str, runs or []), f"--budget {budget}"])
    with told(FAILURE, OSError):
        path = write_page(contents(), mine, found, budget, output, command)
    console().print(Text.assemble((str(path), "bold"), f"  {ledger.summary(found)}"), soft_wrap=True)
