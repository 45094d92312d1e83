"""Finds the runs for a cell of a table or a side of a claim, by their settings and not by their folder."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drcl.lab.common.tables import flat
from drcl.lab.paper.contents import Experiment, Paper
from drcl.lab.report.groups import Group, group
from drcl.lab.report.table import Statistic
from drcl.lab.runs.files import number
from drcl.lab.runs.read import Run

_TABLES = {"method": "method_options", "training": "training", "benchmark": "benchmark_options"}
_MISSING = object()


def setting(run: Run, key: str) -> Any:
    """A setting of a run: of the method, else of the training, else of the benchmark; a prefix selects one of these."""
    head, _, rest = key.partition(".")
    tables = [(_TABLES[head], rest)] if head in _TABLES and rest else [(table, key) for table in _TABLES.values()]
    for table, name in tables:
        found = flat(run.options(table)).get(name, _MISSING)
        if found is not _MISSING:
            return found
    return None


def fits(run: Run, match: Mapping[str, Any]) -> bool:
    """Whether a run has all of these settings."""
    return all(_fits(setting(run, key), wanted) for key, wanted in match.items())


def _fits(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, Mapping):
        if "not" in wanted:
            return not _fits(found, wanted["not"])
        value = number(found)
        return not math.isnan(value) and wanted.get("min", -math.inf) <= value <= wanted.get("max", math.inf)
    if isinstance(wanted, list):
        return any(_fits(found, each) for each in wanted)
    if wanted == "none":  # a run's file omits settings that are None by default
        return found in (None, "none")
    if isinstance(wanted, int | float) and not isinstance(wanted, bool):
        return math.isclose(number(found), wanted, rel_tol=1e-9, abs_tol=1e-15)
    return bool(found == wanted)


@dataclass(frozen=True)
class Found:
    """The runs that count for one row on one benchmark, and the number of its other settings."""

    row: str
    runs: tuple[Run, ...]
    others: int = 0

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(run.seed for run in self.runs if run.seed is not None)

    def at(self, seeds: Iterable[int]) -> Found:
        """The same row on these seeds alone."""
        wanted = set(seeds)
        return Found(self.row, tuple(run for run in self.runs if run.seed in wanted), self.others)

    def statistic(self, metric: str) -> Statistic:
        return Statistic.of(value(run, metric) for run in self.runs)

    def by_seed(self, metric: str) -> dict[int, float]:
        """One value for each seed that has one."""
        values = {run.seed: value(run, metric) for run in self.runs if run.seed is not None}
        return {seed: each for seed, each in values.items() if not math.isnan(each)}


def value(run: Run, metric: str) -> float:
    """A measure by name; if the drift was not kept, shares of weights come from ``result.json``."""
    if metric == "parameters":
        return number(run.cost.get("parameters"))
    if metric == "training_loss":
        return training_loss(run)
    found = run.value(metric)
    return number(run.result.get(metric)) if math.isnan(found) else found


def training_loss(run: Run) -> float:
    """Mean training loss from the second task on, as far as the curve was recorded."""
    losses = [point.loss for point in run.curve if point.task >= 1 and not math.isnan(point.loss)]
    return sum(losses) / len(losses) if losses else math.nan


def series(run: Run, name: str) -> list[float]:
    """A measure per task from ``result.json``; empty if it is not recorded."""
    table = run.result.get("per_task")
    found = table.get(name) if isinstance(table, dict) else None
    return [number(each) for each in found] if isinstance(found, list) else []


def find(
    paper: Paper,
    experiment: Experiment,
    row: str,
    benchmark: str,
    runs: Iterable[Run],
    match: Mapping[str, Any] | None = None,
    stand_in: bool = False,
) -> Found:
    """The finished runs of a row on a benchmark. If there are several settings, the one with the most seeds counts,
    then the first by its settings: to choose by accuracy would be to tune on test data.

    A stand-in has its own network, so the `match` of an experiment does not apply to it.
    """
    wanted = {**({} if stand_in else paper.on(experiment, benchmark).match), **paper.rows[row].match, **(match or {})}
    method = paper.rows[row].method
    mine = [run for run in runs if run.benchmark == benchmark and run.method == method and fits(run, wanted)]
    groups = [g for g in group(mine) if g.finished]
    if not groups:
        return Found(row, ())
    chosen = min(groups, key=lambda g: (-len(g.finished), g.label))
    return Found(row, chosen.finished, len(groups) - 1)


def of_item(paper: Paper, item: str, runs: Sequence[Run], budget: str) -> list[Group]:
    """The runs of an item, by the names of its rows: those that count, on its benchmarks or their stand-ins."""
    experiment = paper.experiment_of(item)
    found: list[Group] = []
    seen: set[Path] = set()
    for benchmark in experiment.benchmarks:
        place, _ = paper.data[benchmark].at(budget)
        for row in experiment.rows:
            match = paper.data[benchmark].told_apart(budget)
            mine = find(paper, experiment, row, place, runs, match, stand_in=place != benchmark)
            if mine.runs and not seen & {run.path for run in mine.runs}:
                seen |= {run.path for run in mine.runs}
                found.append(Group(place, paper.rows[row].method, paper.rows[row].title, mine.runs))
    return found


def scale(runs: Sequence[Run]) -> str:
    """The size of the runs in a few words: network, length of a task, seeds."""
    if not runs:
        return ""
    first = runs[0]
    network = str(setting(first, "model.kind") or "")
    width = setting(first, "model.width")
    words = [network if width in (None, 1, 1.0) else f"{network} at {width:g} width"]
    epochs, steps = setting(first, "epochs"), setting(first, "steps")
    words += [f"{epochs} epochs"] if epochs else [f"{steps} steps"] if steps else []
    return ", ".join(word for word in words if word)
