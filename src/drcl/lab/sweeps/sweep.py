"""Many runs from one file: benchmarks x methods x seeds x grids, here in processes or on a Ray cluster.

A sweep file is TOML::

    plugins = ["mine.py"]         # where to find names that drcl does not know; may be left out
    benchmarks = ["digits-permuted", "digits-split"]  # or a file of your own: "mine.toml"
    methods = ["sgd", "ewc", "drcl"]
    seeds = [0, 1, 2]             # or a number: seeds = 3

    [options]                     # for every run: anything `drcl run -o` takes
    epochs = 5

    [benchmark.digits-split]      # for the runs of one benchmark
    lr = 0.01

    [method.drcl]                 # for the runs of one method; wins over [benchmark.*], which wins over [options]
    memory = "sum"

    [grid]                        # every value of every list, for all methods ...
    batch = [32, 64]

    [grid.ewc]                    # ... and for one method; several keys make all their combinations
    lam = [1.0, 10.0, 100.0]

Every run has its own directory, named after its settings. A finished run is not repeated; an interrupted one continues.
"""

from __future__ import annotations

import itertools
import math
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drcl.lab.benchmarks import files
from drcl.lab.common.fields import nearest
from drcl.lab.runs.config import RunConfig, loaded
from drcl.lab.runs.read import Run

MOST_RUNS = 10_000
KEYS = ("plugins", "benchmarks", "methods", "seeds", "options", "benchmark", "method", "grid")


class SweepError(ValueError):
    """A sweep file that cannot be used."""


@dataclass(frozen=True)
class Job:
    """One run of a sweep and where it is written."""

    config: RunConfig
    directory: Path
    data_root: Path | None = None

    @property
    def finished(self) -> bool:
        return self.directory.is_dir() and Run.read(self.directory).finished


@dataclass(frozen=True)
class Update:
    """News about job number `index`: it was already there, it started, an event, or how it ended."""

    index: int
    kind: str  # "there", "started", "event", "done" or "failed"
    event: Any = None
    reason: str = ""


@dataclass
class Outcome:
    """How a sweep ended."""

    done: list[Job] = field(default_factory=list)
    there: list[Job] = field(default_factory=list)
    failed: list[tuple[Job, str]] = field(default_factory=list)


# A backend runs numbered jobs and reports events; an exception in it, such as Ctrl-C, stops all running jobs.
Tell = Callable[[Update], None]
Backend = Callable[[Sequence[tuple[int, Job]], Tell], None]


def read(path: str | Path, plugins: Sequence[str] = ()) -> list[RunConfig]:
    """The runs of a sweep file, all checked before the first one starts. `plugins` are added to its own."""
    path = Path(path)
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as wrong:
        raise SweepError(f"{path} is not valid TOML: {wrong}") from None
    except RecursionError:
        raise SweepError(f"{path} is not a sweep: its tables are nested too deeply") from None
    try:
        return plan(table, plugins, path)
    except (ValueError, TypeError) as wrong:
        raise SweepError(f"{path}: {wrong}") from None


def plan(table: Mapping[str, Any], plugins: Sequence[str] = (), file: Path | None = None) -> list[RunConfig]:
    """The runs of a sweep as a table: seeds innermost, so that the first results are comparable early. Its own plugins
    may lie beside the `file` it was read from."""
    for key in table:
        if key not in KEYS:
            raise SweepError(f"{key!r} is not a key of a sweep: {nearest(key, KEYS)}")
    plugins = (*loaded(plugins), *loaded(table.get("plugins", []), file))
    benchmarks, methods = _names(table, "benchmarks"), _names(table, "methods")
    benchmarks, plugins = _own_files(benchmarks, plugins, file)
    seeds = _seeds(table.get("seeds", [0]))
    common, grid = _table(table, "options"), _table(table, "grid")
    of_benchmark, of_method = _tables(table, "benchmark", benchmarks), _tables(table, "method", methods)
    for key, value in grid.items():
        if isinstance(value, Mapping) and key not in methods:
            raise SweepError(f"[grid.{key}]: {key!r} is not among the methods: {nearest(key, methods)}")
    for_all = {key: value for key, value in grid.items() if not isinstance(value, Mapping)}
    points = {method: {**for_all, **grid.get(method, {})} for method in methods}
    _few_enough(len(benchmarks) * len(seeds) * sum(_count(each) for each in points.values()))
    planned: dict[str, RunConfig] = {}
    for benchmark, seed, method in itertools.product(benchmarks, seeds, methods):
        fixed = {**common, **of_benchmark.get(benchmark, {}), **of_method.get(method, {})}
        for point in _points(points[method]):
            config = RunConfig.make(benchmark, method, seed, {**fixed, **point}, plugins)
            planned.setdefault(config.name, config)
    return list(planned.values())


def _own_files(
    benchmarks: Sequence[str], plugins: tuple[str, ...], file: Path | None
) -> tuple[list[str], tuple[str, ...]]:
    """The names of the benchmarks, including all of those in a user's file, which may lie beside the sweep file."""
    names: list[str] = []
    for each in benchmarks:
        if files.is_file(each):
            found, plugin = files.load(each, file.parent if file else None)
            names, plugins = [*names, *found], (*plugins, plugin)
        else:
            names.append(each)
    return list(dict.fromkeys(names)), tuple(dict.fromkeys(plugins))


def _few_enough(runs: int) -> None:
    if runs > MOST_RUNS:
        raise SweepError(
            f"that makes {runs:,} runs, but a sweep has at most {MOST_RUNS:,}; divide it into several files"
        )


def _names(table: Mapping[str, Any], key: str) -> list[str]:
    value = table.get(key)
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list) or not value or not all(isinstance(each, str) for each in value):
        raise SweepError(f'{key} is {value!r}; give a list of names, such as {key} = ["..."]')
    return list(dict.fromkeys(value))


def _seeds(value: object) -> list[int]:
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        if value > MOST_RUNS:
            raise SweepError(f"seeds = {value}: a sweep has at most {MOST_RUNS:,} runs; divide it into several files")
        return list(range(value))
    whole = isinstance(value, list) and all(isinstance(v, int) and not isinstance(v, bool) and v >= 0 for v in value)
    if not whole or not value:
        raise SweepError(f"seeds is {value!r}; give a list of whole numbers, or how many seeds from 0 on")
    assert isinstance(value, list)
    return list(dict.fromkeys(value))


def _table(table: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = table.get(key, {})
    if not isinstance(value, dict):
        raise SweepError(f"{key} is {value!r}; make it a table: [{key}]")
    return value


def _tables(table: Mapping[str, Any], key: str, known: Sequence[str]) -> dict[str, dict[str, Any]]:
    tables = _table(table, key)
    for name, value in tables.items():
        if name not in known:
            raise SweepError(f"[{key}.{name}]: {name!r} is not among the {key}s: {nearest(name, known)}")
        if not isinstance(value, dict):
            raise SweepError(f"{key}.{name} is {value!r}; make it a table: [{key}.{name}]")
    return tables


def _count(grid: Mapping[str, Any]) -> int:
    for key, values in grid.items():
        if not isinstance(values, list) or not values:
            raise SweepError(f"grid.{key} is {values!r}; give the list of values to try")
    return math.prod(map(len, grid.values()))


def _points(grid: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    return (dict(zip(grid, point)) for point in itertools.product(*grid.values()))


# ---- running


def jobs(configs: Iterable[RunConfig], out: str | Path, data_root: Path | None = None) -> list[Job]:
    """A directory for each run, below `out`."""
    return [Job(config, Path(out) / config.name, data_root) for config in configs]


def run(todo: Sequence[Job], backend: Backend, tell: Tell = lambda update: None) -> Outcome:
    """Do the runs that are not finished yet; a failure is noted and does not stop the rest."""
    outcome = Outcome()
    waiting = []
    for index, job in enumerate(todo):
        if job.finished:
            outcome.there.append(job)
            tell(Update(index, "there"))
        else:
            waiting.append((index, job))

    def note(update: Update) -> None:
        if update.kind == "done":
            outcome.done.append(todo[update.index])
        elif update.kind == "failed":
            outcome.failed.append((todo[update.index], update.reason))
        tell(update)

    if waiting:
        backend(waiting, note)
    return outcome
