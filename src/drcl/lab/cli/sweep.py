"""``drcl sweep``: do all runs of a file, and report the result of each at the end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from drcl.lab.cli.arguments import Data, Plugins, load
from drcl.lab.cli.board import Line, watch_all
from drcl.lab.cli.terminal import FAILURE, USAGE, console, fail, stoppable, told
from drcl.lab.report.formats import summary_table
from drcl.lab.runs.read import find
from drcl.lab.sweeps import sweep as plan
from drcl.lab.sweeps import workers
from drcl.lab.sweeps.cluster import ClusterError, on_ray
from drcl.lab.sweeps.names import labels


def sweep(
    file: Annotated[Path, typer.Argument(help="TOML file: benchmarks, methods, seeds, options, grids.")],
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Number of runs at the same time.")] = 1,
    out: Annotated[Path, typer.Option("--out", help="Folder for the runs' directories.")] = Path("runs"),
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster", help="Run on a Ray cluster: its address (ray://host:port or auto), or local to start one."
        ),
    ] = None,
    shared: Annotated[
        bool, typer.Option("--shared", help="All machines of the cluster can see the folder of --out.")
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start a new process for every run: slower, but needed to measure memory.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the runs, without running them.")] = False,
    plugin: Plugins = None,
    data: Data = None,
) -> None:
    """Run benchmarks x methods x seeds x grids. Finished runs are skipped; a failed run does not stop the others."""
    with told(USAGE, ValueError, OSError):
        todo = plan.jobs(plan.read(file, load(plugin)), out, data)
    here = console()
    named = labels([job.config for job in todo])
    if dry_run:
        for job, label in zip(todo, named):
            state = "finished" if job.finished else "to do"
            here.print(Text.assemble(f"{label}  ", (f"{job.directory} ({state})", "dim")), soft_wrap=True)
        return
    backend = workers.processes(jobs, 1) if fresh else workers.processes(jobs)
    if cluster is not None:
        with told(FAILURE, ClusterError):
            backend = on_ray(cluster, shared=shared, at_once=jobs if jobs > 1 else None)
    lines = [Line(label, job.directory) for job, label in zip(todo, named)]
    with stoppable(lambda: _stopped(todo)), told(FAILURE), watch_all(here, lines, file.name) as board:
        outcome = plan.run(todo, backend, board.update)
    _close(here, outcome, out)
    if outcome.failed:
        fail(f"{len(outcome.failed)} of {len(todo)} runs failed", FAILURE)


def _stopped(todo: Sequence[plan.Job]) -> str:
    done = sum(job.finished for job in todo)
    return f"stopped with {done} of {len(todo)} runs finished; the same command continues from there"


def _close(here: Console, outcome: plan.Outcome, out: Path) -> None:
    mine = {job.directory.resolve() for job in (*outcome.done, *outcome.there)}
    if mine:
        here.print()
        here.print(summary_table([run for run in find([out]) if run.path.resolve() in mine]))
        here.print(Text.assemble(("results    ", "dim"), (f"{out}/", "bold")), soft_wrap=True)
        here.print(Text.assemble(("page       ", "dim"), f"drcl report {out}"), soft_wrap=True)
    for job, why in outcome.failed:
        here.print(Text.assemble(("failed     ", "red"), (job.config.name, "bold"), f": {why}"), soft_wrap=True)
        if (job.directory / "error.txt").exists():
            here.print(Text(f"           see {job.directory / 'error.txt'}", style="dim"), soft_wrap=True)
