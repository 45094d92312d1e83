"""Finds strengths for the rows of an experiment: each with the same number of trials, on validation data of the first
tasks of a seed that no table shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drcl.lab import benchmarks
from drcl.lab.paper.contents import Paper, Row
from drcl.lab.paper.plan import asked_for, missing_data, options_of, own_options, tunable
from drcl.lab.sweeps.sweep import Backend, Job, Tell
from drcl.lab.sweeps.tune import Tuning

TASKS, SEED = 4, 100


@dataclass(frozen=True)
class Search:
    """The trials of one row on one benchmark."""

    row: str
    benchmark: str
    key: str
    tuning: Tuning


def searches(
    paper: Paper,
    items: Sequence[str],
    budget: str,
    out: Path,
    trials: int | None = None,
    given: Mapping[str, Any] | None = None,
    root: Path | None = None,
    rows: Sequence[str] = (),
) -> Iterator[Search]:
    """What to tune for these items, in all their `rows` unless some are named; `trials` replaces the experiments' own
    number, 0 means none. A given strength is not tuned, nor, unless `trials` asks for it, one that earlier trials
    found."""
    for item in dict.fromkeys(items):
        experiment = paper.experiment_of(item)
        count = experiment.tune if trials is None else trials
        if not count or budget == "smoke":
            continue
        for benchmark in experiment.benchmarks:
            place, fitted = paper.data[benchmark].at(budget)
            if missing_data(place, root):
                continue
            settings = paper.on(experiment, benchmark)
            known = settings.strengths.get(budget, {}) if trials is None else {}
            for name in asked_for(experiment, rows):
                if name in known:
                    continue
                row = paper.rows[name]
                options = options_of(settings, row, fitted, budget) | own_options(paper, row, given or {})
                key = tunable(row)
                if key and not _given(row, key, given or {}):
                    folder = out / "tuning" / settings.name / benchmark / name
                    yield Search(name, benchmark, key, _tuning(row, place, options, key, folder, count, root))


def _given(row: Row, key: str, given: Mapping[str, Any]) -> bool:
    return any(start + name in given for start in ("", f"{row.name}.") for name in (key, f"method.{key}"))


def _tuning(
    row: Row, place: str, options: Mapping[str, Any], key: str, folder: Path, trials: int, root: Path | None
) -> Tuning:
    low, high = row.tune if row.tune is not None else (None, None)
    kept = {name: value for name, value in options.items() if name not in (key, f"method.{key}", "tasks")}
    tasks = min(TASKS, benchmarks.get(place).tasks)
    return Tuning(place, [row.method], folder, tasks, trials, SEED, low, high, kept, data_root=root)


def tune(
    found: Sequence[Search], backend: Backend, watch: Callable[[Search, Sequence[Job]], Tell] | None = None
) -> dict[tuple[str, str], dict[str, Any]]:
    """Run the trials; returns the best strength of each row on each benchmark. If all its trials fail, a row keeps its
    own strength."""
    chosen: dict[tuple[str, str], dict[str, Any]] = {}
    for search in found:
        trials = search.tuning.run(backend, _watch(search, watch))
        best = search.tuning.best(trials).get(search.tuning.methods[0])
        if best is not None:
            chosen[search.benchmark, search.row] = {f"method.{search.key}": best.value}
    return chosen


def _watch(
    search: Search, watch: Callable[[Search, Sequence[Job]], Tell] | None
) -> Callable[[Sequence[Job]], Tell] | None:
    return None if watch is None else lambda jobs: watch(search, jobs)
