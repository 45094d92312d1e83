"""``drcl tune``: every method's strength, chosen on validation data with the same number of trials."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from drcl.lab import benchmarks
from drcl.lab.cli.arguments import Data, Options, Plugins, load, own_file, parsed
from drcl.lab.cli.board import Board, Line, watch_all
from drcl.lab.cli.terminal import FAILURE, USAGE, console, fail, stoppable, told
from drcl.lab.common.words import percent
from drcl.lab.sweeps import workers
from drcl.lab.sweeps.sweep import Job, Tell, Update
from drcl.lab.sweeps.tune import Trial, Tuning


def tune(
    benchmark: Annotated[str, typer.Argument(help="A name from `drcl list benchmarks`, or your own file: mine.toml.")],
    methods: Annotated[str, typer.Option("--methods", "-m", help="Methods to tune, separated by commas.")],
    tasks: Annotated[
        int | None, typer.Option("--tasks", min=1, help="How many of the first tasks may be used; by default three.")
    ] = None,
    budget: Annotated[int, typer.Option("--budget", min=3, help="Trials per method.")] = 8,
    seed: Annotated[int, typer.Option("--seed", "-s", min=0, help="Seed of every trial.")] = 0,
    between: Annotated[
        str | None,
        typer.Option(
            "--range", metavar="LOW:HIGH", help="Range of the first, coarse grid; by default each method's own."
        ),
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option("--key", metavar="METHOD=OPTION", help="Option to tune instead of the method's own strength."),
    ] = None,
    option: Options = None,
    plugin: Plugins = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Number of trials to run at the same time.")] = 1,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for the results; by default tuning/BENCHMARK.")
    ] = None,
    data: Data = None,
) -> None:
    """Choose each method's strength on validation data of the first tasks, without reading any test set."""
    named = list(dict.fromkeys(name.strip() for name in methods.split(",") if name.strip()))
    if not named:
        fail("--methods is empty: name at least one method, such as --methods ewc,drcl", USAGE)
    low, high = (None, None) if between is None else _range(between)
    name, outside = own_file(benchmark, load(plugin))
    assert name is not None
    benchmark = name
    with told(USAGE, ValueError, TypeError):
        chosen = Tuning(
            benchmark,
            named,
            out or Path("tuning") / benchmark,
            tasks=min(3, benchmarks.get(benchmark).tasks) if tasks is None else tasks,
            budget=budget,
            seed=seed,
            low=low,
            high=high,
            options=parsed(option or []),
            keys={name: str(value) for name, value in parsed(key or []).items()},
            data_root=data,
            plugins=outside,
        )
    here = console()
    backend = workers.here if jobs == 1 else workers.processes(jobs)
    stop = stoppable(lambda: "stopped; the same command continues from there")
    with stop, told(FAILURE), watch_all(here, [], f"tuning on {benchmark}") as board:
        board.expected = len(named) * budget
        trials = chosen.run(backend, lambda todo: _on(board, todo, chosen))
    _close(here, chosen, trials)


def _range(text: str) -> tuple[float, float]:
    low, _, high = text.partition(":")
    try:
        return float(low), float(high)
    except ValueError:
        fail(f"--range {text}: write two numbers separated by a colon, such as 0.01:100", USAGE)


def _on(board: Board, todo: Sequence[Job], tuning: Tuning) -> Tell:
    """Put the trials of one more round on the board."""
    first = len(board.lines)
    for job in todo:
        key = tuning.key(job.config.method)
        board.lines.append(Line(f"{job.config.method} {key}={job.config.method_options[key]:g}", job.directory))

    def tell(update: Update) -> None:
        board.update(replace(update, index=first + update.index))

    return tell


def _close(here: Console, tuning: Tuning, trials: Sequence[Trial]) -> None:
    best = tuning.best(trials)
    table = Table(box=box.ROUNDED, border_style="dim", header_style="bold", padding=(0, 2))
    table.title = Text(f"{tuning.benchmark}, first {tuning.tasks} tasks", style="bold")
    table.add_column("method")
    table.add_column("chosen", justify="right")
    table.add_column("validation accuracy", justify="right")
    table.add_column("trials", justify="right")
    for method in tuning.methods:
        mine = [trial for trial in trials if trial.method == method]
        found = best.get(method)
        value = (
            Text(f"{found.key} = {found.value:g}", style="bold green") if found else Text("none worked", style="red")
        )
        table.add_row(method, value, percent(found.score) if found else "–", str(len(mine)))
    here.print()
    here.print(table)
    for remark in tuning.remarks(trials):
        here.print(Text.assemble(("note       ", "yellow"), remark), soft_wrap=True)
    here.print(Text.assemble(("tried      ", "dim"), f"{tuning.out / 'trials.csv'}"), soft_wrap=True)
    here.print(Text.assemble(("compare    ", "dim"), f"drcl sweep {tuning.out / 'tuned.toml'}"), soft_wrap=True)
    for method in best:
        one = f"drcl run --config {tuning.out / f'{method}.toml'}"
        here.print(Text.assemble(("one run    ", "dim"), one), soft_wrap=True)
    lost = [method for method in tuning.methods if method not in best]
    if lost:
        fail(f"every trial of {', '.join(lost)} failed; trials.csv says why", FAILURE)
