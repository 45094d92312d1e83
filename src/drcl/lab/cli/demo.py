"""``drcl demo``, the first thing a newcomer sees: four methods on built-in data, a table, a page and an honest summary.

The demonstration is the sweep in ``demo.toml``, so you can repeat everything with ``drcl sweep`` and change it there.
"""

from __future__ import annotations

import shutil
import tempfile
import tomllib
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from drcl.lab.cli.board import Line, strip, watch_all
from drcl.lab.cli.terminal import FAILURE, console, fail, stoppable, told
from drcl.lab.report.findings import finding
from drcl.lab.report.formats import summary_table
from drcl.lab.report.table import Row, rows
from drcl.lab.runs.config import RunConfig
from drcl.lab.runs.read import Run
from drcl.lab.sweeps import sweep, workers
from drcl.lab.sweeps.names import labels

EXPLANATION = (
    "Average accuracy is the mean over the test sets of all tasks after the last task was learned. Backward transfer "
    "is how much the accuracy on earlier tasks has changed since they were new. The strengths of ewc and drcl are the "
    "best of seven trials on validation data of another seed; drcl-kronecker has its default. The other settings, "
    "including drcl's splitting and drcl-kronecker's penalty, were chosen on this problem before that, partly on "
    "its test data. This is a small problem: it shows how the methods differ, not how they rank in general."
)


def demo(
    out: Annotated[Path, typer.Option("--out", help="Folder for the page and the runs.")] = Path("demo"),
    seeds: Annotated[
        int | None, typer.Option("--seeds", min=1, help="Number of seeds, instead of the default.")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Run everything again, even finished runs.")] = False,
) -> None:
    """See it work: SGD, EWC and DRCL on eight small tasks, in a few minutes and without a download."""
    here = console()
    with stoppable(lambda: "stopped; drcl demo continues from there"), told(FAILURE):
        chosen = Demo.read(out, seeds)
        if again:
            chosen.forget()
        outcome = chosen.show(here)
    for job, why in outcome.failed:
        here.print(Text.assemble(("failed  ", "red"), (job.config.name, "bold"), f": {why}"), soft_wrap=True)
    if outcome.failed:
        fail(f"{len(outcome.failed)} of {len(chosen.plan)} runs failed")


@dataclass(frozen=True)
class Demo:
    """The runs of the demonstration and the folders they use."""

    out: Path
    plan: tuple[RunConfig, ...]

    @classmethod
    def read(cls, out: Path, seeds: int | None = None) -> Demo:
        table: dict[str, Any] = tomllib.loads(
            resources.files("drcl.lab.cli").joinpath("demo.toml").read_text(encoding="utf-8")
        )
        if seeds is not None:
            table["seeds"] = seeds
        return cls(out, tuple(sweep.plan(table)))

    @property
    def jobs(self) -> list[sweep.Job]:
        return sweep.jobs(self.plan, self.out / "runs")

    @property
    def page(self) -> Path:
        return self.out / "report.html"

    def forget(self) -> None:
        """Remove the runs of this demonstration, and nothing else that may be in the folder."""
        for job in self.jobs:
            shutil.rmtree(job.directory, ignore_errors=True)

    def show(self, here: Console) -> sweep.Outcome:
        """Run it while the reader watches."""
        here.print(self._opening())
        todo = self.jobs
        if not all(job.finished for job in todo):
            with here.status("[dim]getting ready[/]") if here.is_terminal else nullcontext():
                _warm_up(self.plan)
        lines = [Line(label, job.directory) for job, label in zip(todo, labels(self.plan))]
        with watch_all(here, lines) as board:
            outcome = sweep.run(todo, workers.here, board.update)
        done = [Run.read(job.directory) for job in (*outcome.done, *outcome.there)]
        if done:
            from drcl.lab.report.page import write_report  # late, see cli.app

            write_report(done, self.page, title="drcl: a demonstration", command="drcl demo")
            here.print(self._close(done, repeated=not outcome.done))
        return outcome

    # ---- words

    def _opening(self) -> RenderableType:
        one = self.plan[0]
        made = one.make_benchmark()
        heading = Text("Learning task after task with one network", style="bold")
        story = Text(
            f"{made.tasks} tasks, each with the same handwritten digits but with the pixels in a new order. Data of "
            "earlier tasks are never seen again. How much does the network still know at the end?"
        )
        widths = "-".join(map(str, made.model.get("hidden", ())))
        seeds = ", ".join(map(str, dict.fromkeys(config.seed for config in self.plan)))
        chosen = {config.method: config.method_options for config in self.plan if config.method_options}
        strengths = "; ".join(
            f"{name} with " + ", ".join(f"{key} {value}" for key, value in options.items())
            for name, options in chosen.items()
        )
        setting = Text(
            f"{one.benchmark} · {made.model['kind']} {widths} · {made.epochs} epochs per task · batch {made.batch} · "
            f"lr {made.lr} · momentum {made.momentum} · seeds {seeds}\n{strengths}",
            style="dim",
        )
        return Group(
            Text(), Rule(Text("drcl demo", style="bold cyan"), style="dim"), Text(), heading, story, setting, ""
        )

    def _close(self, done: Sequence[Run], repeated: bool) -> RenderableType:
        table = rows(done)
        parts: list[RenderableType] = [Text(), summary_table(done), Text()]
        parts += [_memory(table), Text(), Text(finding(table), style="bold"), Text(EXPLANATION, style="dim"), Text()]
        if repeated:
            parts.append(Text("These results already existed; drcl demo --again runs everything again.\n", "yellow"))
        places = Table.grid(padding=(0, 2))
        places.add_column()
        places.add_column(overflow="fold")  # a truncated path would be useless
        places.add_row(Text("page", style="dim"), Text(str(self.page), style="bold"))
        places.add_row(Text("runs", style="dim"), Text(f"{self.out / 'runs'}/"))
        places.add_row(Text("next", style="dim"), Text("drcl list benchmarks · drcl list methods · drcl run --help"))
        return Group(*parts, places)


def _memory(table: Sequence[Row]) -> RenderableType:
    """What each method still knows, task by task: the shape of forgetting in one line per method."""
    grid = Table.grid(padding=(0, 2))
    for row in table:
        if row.group is not None and row.group.finished:
            last = row.group.matrix()[-1]
            ends = Text(f"first task {100 * last[0]:.0f} %, last {100 * last[-1]:.0f} %", style="dim")
            blocks = Text(" ").join([strip([value]) for value in last])
            grid.add_row(Text(row.label), blocks, ends)
    return Group(Text("accuracy on each task at the end, oldest first", style="dim"), Padding(grid, (0, 0, 0, 2)))


def _warm_up(plan: Sequence[RunConfig]) -> None:
    """Run every method briefly and discard the result, so that libraries are loaded and kernels built before timing."""
    with tempfile.TemporaryDirectory(prefix="drcl-") as folder:
        for config in {config.method: config for config in plan}.values():
            small = {**config.benchmark_options, "tasks": 2, "epochs": 1}
            job = sweep.Job(replace(config, benchmark_options=small), Path(folder) / config.method)
            workers.here([(0, job)], lambda update: None)
