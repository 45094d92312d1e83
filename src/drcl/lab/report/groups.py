"""Runs of one method on one benchmark over its seeds: one row of a table, or one curve."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from drcl.lab.common.tables import flat_text
from drcl.lab.runs.read import Run


@dataclass(frozen=True)
class Group:
    """Runs of one method on one benchmark that differ only in their seed."""

    benchmark: str
    method: str
    label: str  # the method, with the options in which it differs from other groups of the same method
    runs: tuple[Run, ...]

    @property
    def finished(self) -> tuple[Run, ...]:
        """The runs that count: finished, each seed once, all over the same number of tasks."""
        left_out = {run.path for run, _ in self.left_out}
        return tuple(run for run in self.runs if run.finished and run.path not in left_out)

    @property
    def left_out(self) -> tuple[tuple[Run, str], ...]:
        """Finished runs that do not count, and why. Counting one seed twice would feign certainty."""
        found: list[tuple[Run, str]] = []
        seen: set[int | None] = set()
        tasks = 0
        for run in self.runs:
            if not run.finished:
                continue
            tasks = tasks or run.tasks
            if run.tasks != tasks:
                found.append((run, f"has {run.tasks} tasks instead of {tasks}"))
            elif run.seed in seen:
                found.append((run, f"repeats seed {run.seed}"))
            seen.add(run.seed)
        return tuple(found)

    @property
    def unfinished(self) -> tuple[Run, ...]:
        return tuple(run for run in self.runs if not run.finished)

    def matrix(self) -> np.ndarray:
        """The mean accuracy matrix over the seeds that count."""
        return np.mean([run.matrix for run in self.finished], axis=0)


def group(runs: Iterable[Run | Group]) -> list[Group]:
    """Group readable runs over their seeds. Runs with different options form different groups, each with its own label.

    Existing groups keep their labels, so that a part of a table has the same names as the whole table.
    """
    runs = list(runs)
    readable = [run for run in runs if isinstance(run, Run) and run.readable]
    benchmarks = _labels(readable, lambda run: run.benchmark, _benchmark_settings)
    buckets: dict[tuple[str, str, tuple[tuple[str, str], ...]], list[Run]] = {}
    for run in readable:
        buckets.setdefault((benchmarks[run.path], run.method, tuple(sorted(_settings(run).items()))), []).append(run)
    labels: dict[Path, str] = {}
    for benchmark in dict.fromkeys(benchmarks.values()):
        here = [run for run in readable if benchmarks[run.path] == benchmark]
        labels.update(_labels(here, lambda run: run.method, _settings))
    groups = [
        Group(benchmark, method, labels[members[0].path], tuple(sorted(members, key=_by_seed)))
        for (benchmark, method, _), members in buckets.items()
    ]
    groups += [g for g in runs if isinstance(g, Group)]
    return sorted(groups, key=lambda g: (g.benchmark, g.method, g.label))


def same_seeds(groups: Iterable[Group]) -> list[Group]:
    """Groups reduced, per benchmark, to the seeds that all of them have; unchanged where they have none in common.

    A seed decides the order of classes, so curves over different seeds differ before any method does.
    """
    groups = list(groups)
    shared: dict[str, set[int | None]] = {}
    for g in groups:
        seeds = {run.seed for run in g.finished}
        shared[g.benchmark] = shared.get(g.benchmark, seeds) & seeds
    return [
        replace(g, runs=tuple(run for run in g.finished if run.seed in shared[g.benchmark]))
        if shared[g.benchmark]
        else g
        for g in groups
    ]


def _by_seed(run: Run) -> tuple[int, str]:
    return (run.seed or 0, str(run.path))


def _benchmark_settings(run: Run) -> dict[str, str]:
    return flat_text(run.options("benchmark_options"))


def _settings(run: Run) -> dict[str, str]:
    return flat_text(run.options("method_options")) | flat_text(run.options("training"), "training.")


def _labels(runs: list[Run], name: Callable[[Run], str], settings: Callable[[Run], dict[str, str]]) -> dict[Path, str]:
    """The name alone if all runs of that name agree; otherwise the name and the options that differ."""
    labels: dict[Path, str] = {}
    for each in dict.fromkeys(name(run) for run in runs):
        mine = {run.path: settings(run) for run in runs if name(run) == each}
        keys = sorted({key for flat in mine.values() for key in flat})
        telling = [key for key in keys if len({flat.get(key) for flat in mine.values()}) > 1]
        for path, flat in mine.items():
            differs = ", ".join(f"{key}={flat.get(key, 'not set')}" for key in telling)
            labels[path] = f"{each} ({differs})" if telling else each
    return labels
