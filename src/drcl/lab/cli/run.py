"""``drcl run``: one method on one benchmark, from the first task to the summary."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from drcl.lab.cli.arguments import Data, Options, Plugins, load, own_file, parsed
from drcl.lab.cli.progress import watch
from drcl.lab.cli.terminal import FAILURE, USAGE, console, fail, notes, stoppable, told
from drcl.lab.report.formats import summary_table
from drcl.lab.runs import loggers
from drcl.lab.runs.config import PREFIXES, RunConfig
from drcl.lab.runs.execute import execute
from drcl.lab.runs.read import Run

# One folder inside --out: no path separators, no "..", and no hidden name that `drcl table` would not find.
_PLAIN_NAME = re.compile(r"[^\W_][\w +=.,@()-]*|_[\w +=.,@()-]*")


def run(
    benchmark: Annotated[
        str | None, typer.Argument(help="A name from `drcl list benchmarks`, or your own file: mine.toml.")
    ] = None,
    method: Annotated[
        str | None, typer.Option("--method", "-m", help="A name from `drcl list methods`; by default drcl.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", "-s", min=0, help="Seed for tasks, weights and batches.")
    ] = None,
    tasks: Annotated[int | None, typer.Option("--tasks", min=1, help="Number of tasks; by default all.")] = None,
    option: Options = None,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="TOML file with settings; options on the command line win.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder for the run's directory.")] = Path("runs"),
    name: Annotated[str | None, typer.Option("--name", help="Name of the run's directory.")] = None,
    device: Annotated[str | None, typer.Option("--device", help="cpu, cuda, cuda:1, mps or auto.")] = None,
    precision: Annotated[str | None, typer.Option("--precision", help="fp32 or bf16.")] = None,
    plugin: Plugins = None,
    log: Annotated[
        list[str] | None, typer.Option("--log", help="Also log to tensorboard, mlflow or wandb; may be repeated.")
    ] = None,
    data: Data = None,
) -> None:
    """Train a method on a benchmark. The same command continues an interrupted run; a finished run is not repeated."""
    outside = load(plugin)
    given = parsed(option or [])
    for key, value in (("training.device", device), ("training.precision", precision), ("benchmark.tasks", tasks)):
        if value is not None:
            given[key] = value
    benchmark, outside = own_file(benchmark, outside)
    with told(USAGE, ValueError, TypeError, OSError):
        chosen = gathered(config, benchmark, method, seed, given, outside)
    if name is not None and not _PLAIN_NAME.fullmatch(name):
        fail(f"--name {name!r}: give a plain name (letters, digits, spaces, -_+=.,@); --out chooses the folder", USAGE)
    directory = out / (name or chosen.name)
    with told(USAGE, loggers.LoggerError):
        logging = loggers.make(log or [], directory, settings(chosen))
    here = console()
    here.print()
    there = directory.is_dir() and Run.read(directory).finished
    title = f"{chosen.benchmark} · {chosen.method} · seed {chosen.seed}"
    stop = stoppable(lambda: "stopped; the same command continues from the last checkpoint")
    with stop, told(FAILURE), notes(here), watch(here, title) as show:
        execute(chosen, directory, progress=show, loggers=logging, data_root=data)
    if here.quiet:
        return
    here.print()
    here.print(summary_table([Run.read(directory)]))
    here.print(Text("this run is already finished; here is its result" if there else "", style="dim"))
    here.print(Text.assemble(("results    ", "dim"), (f"{directory}/", "bold")), soft_wrap=True)
    here.print(Text.assemble(("page       ", "dim"), f"drcl report {directory}"), soft_wrap=True)


def gathered(
    file: Path | None,
    benchmark: str | None,
    method: str | None,
    seed: int | None,
    options: dict[str, Any],
    plugins: tuple[str, ...] = (),
) -> RunConfig:
    """The run that the file and the command line describe together; the command line wins."""
    if file is None:
        if benchmark is None:
            raise ValueError("no benchmark given: write drcl run BENCHMARK; `drcl list benchmarks` shows the names")
        return RunConfig.make(benchmark, method or "drcl", seed or 0, options, plugins)
    read = RunConfig.from_toml(file)
    if method is not None and method != read.method and read.method_options:
        # Another method does not know the options of this one, and dropping them silently would be worse.
        raise ValueError(f"{file} has options of {read.method!r}; --method {method} cannot use them")
    kept = {f"{prefix}.{key}": v for prefix, name in PREFIXES.items() for key, v in getattr(read, name).items()}
    wanted = seed if seed is not None else read.seed
    known = (*read.plugins, *plugins)
    return RunConfig.make(benchmark or read.benchmark, method or read.method, wanted, {**kept, **options}, known)


def settings(config: RunConfig) -> dict[str, Any]:
    """The resolved configuration as plain tables, for loggers."""
    return asdict(config.resolved())
