"""Turns an item of the paper and a budget into runs: which row, on which data, with which options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drcl.lab import benchmarks, methods
from drcl.lab.common.fields import nearest
from drcl.lab.data.folder import data_folder
from drcl.lab.data.loading import available
from drcl.lab.data.registry import entries
from drcl.lab.paper.contents import Experiment, Paper, Row
from drcl.lab.runs.config import RunConfig


@dataclass(frozen=True)
class Planned:
    """One run of a plan, with the row and data set of the paper it is for."""

    row: str
    benchmark: str  # the paper's; config.benchmark may be a stand-in
    config: RunConfig
    cost: float

    @property
    def stand_in(self) -> bool:
        return self.config.benchmark != self.benchmark


@dataclass(frozen=True)
class Plan:
    """The runs of one item at one budget, and what is skipped."""

    runs: tuple[Planned, ...]
    skipped: dict[str, str] = field(default_factory=dict)  # benchmark -> reason

    @property
    def configs(self) -> list[RunConfig]:
        """Each run once: several benchmarks of the paper may have the same stand-in."""
        return list({run.config.name: run.config for run in self.runs}.values())

    def only(self, benchmarks: Sequence[str]) -> Plan:
        """The part of the plan with these benchmarks; an empty list means all."""
        for each in benchmarks:
            if each not in self._places:
                found = list(dict.fromkeys(self._places))
                raise ValueError(f"benchmark {each!r} is not part of this: {nearest(each, found)}")
        kept = [run for run in self.runs if not benchmarks or run.benchmark in benchmarks]
        return Plan(tuple(kept), {k: v for k, v in self.skipped.items() if not benchmarks or k in benchmarks})

    @property
    def _places(self) -> list[str]:
        return [*(run.benchmark for run in self.runs), *self.skipped]

    @property
    def stand_ins(self) -> dict[str, str]:
        return {run.benchmark: run.config.benchmark for run in self.runs if run.stand_in}


def missing_data(name: str, root: Path | None = None) -> list[str]:
    """The data sets of a benchmark that are not in the data folder."""
    wanted = benchmarks.get(name).data
    known = entries()
    names = [wanted] if isinstance(wanted, str) else list(wanted)
    return [each for each in names if not known[each].embedded and not available(known[each], data_folder(root))]


def by_hand(name: str) -> list[str]:
    """The data sets of a benchmark that no program can fetch."""
    wanted = benchmarks.get(name).data
    return [each for each in ([wanted] if isinstance(wanted, str) else wanted) if not entries()[each].sources]


def plan(
    paper: Paper,
    items: Sequence[str],
    budget: str,
    given: Mapping[str, Any] | None = None,
    root: Path | None = None,
    strengths: Mapping[tuple[str, str], Mapping[str, Any]] | None = None,
    seeds: int | None = None,
    skip: bool = True,
    rows: Sequence[str] = (),
) -> Plan:
    """The runs of these items, of all their `rows` unless some are named. `given` are options for all these rows or, as
    ``ROW.key``, for one. They win over `strengths`, which tuning found for a row on a benchmark. `seeds` replaces the
    experiments' own number. Without `skip`, runs whose data are missing are planned too."""
    _check(paper, items, given or {}, rows)
    runs: list[Planned] = []
    skipped: dict[str, str] = {}
    for item in items:
        experiment = paper.experiment_of(item)
        for benchmark in experiment.benchmarks:
            place, _ = paper.data[benchmark].at(budget)
            absent = missing_data(place, root)
            if absent and skip:
                place_it = f"drcl data path {absent[0]} says where it belongs"
                how = place_it if by_hand(place) else f"drcl data fetch {absent[0]}"
                skipped[benchmark] = f"{', '.join(absent)} is not here ({how})"
                continue
            count = seeds or experiment.seeds[budget]
            for seed in range(count):
                own: dict[str, Planned] = {}
                for name in asked_for(experiment, rows):
                    one = _planned(paper, experiment, name, benchmark, budget, seed, given or {}, strengths or {})
                    own.setdefault(one.config.name, one)  # trials of a row may have chosen another row's strength
                runs += own.values()
    return Plan(tuple(runs), skipped)


def _check(paper: Paper, items: Sequence[str], given: Mapping[str, Any], asked: Sequence[str]) -> None:
    rows = {row for item in items for row in paper.experiment_of(item).rows}
    for each in asked:
        if each not in rows:
            raise ValueError(f"row {each!r} is not part of this: {nearest(each, sorted(rows))}")
    for key in given:
        head, dot, _ = key.partition(".")
        if dot and head in paper.rows and head not in rows:
            raise ValueError(f"-o {key}: {head} is not among the rows of {', '.join(items)}: {', '.join(sorted(rows))}")


def asked_for(experiment: Experiment, rows: Sequence[str]) -> list[str]:
    """The experiment's rows that are named in `rows`; all if none is named."""
    return [name for name in experiment.rows if not rows or name in rows]


def _planned(
    paper: Paper,
    experiment: Experiment,
    name: str,
    benchmark: str,
    budget: str,
    seed: int,
    given: Mapping[str, Any],
    strengths: Mapping[tuple[str, str], Mapping[str, Any]],
) -> Planned:
    (place, fitted), row = paper.data[benchmark].at(budget), paper.rows[name]
    options = options_of(paper.on(experiment, benchmark), row, fitted, budget)
    options |= _over(options, strengths.get((benchmark, name), {}))
    options |= _over(options, own_options(paper, row, given))
    return Planned(name, benchmark, RunConfig.make(place, row.method, seed, options), row.cost)


def options_of(experiment: Experiment, row: Row, fitted: Mapping[str, Any], budget: str) -> dict[str, Any]:
    """Later options win: the data set, the experiment, the row, the row in this experiment, the strength that trials
    found for it. The stand-in of a smoke run takes only the row's options, because the experiment's network or rate
    does not suit it."""
    if budget == "smoke":
        return {**fitted, **experiment.smoke, **row.options, **row.smoke}
    of_experiment = {**experiment.options, **getattr(experiment, budget)}
    options = {**fitted, **of_experiment, **row.options, **getattr(row, budget), **experiment.row.get(row.name, {})}
    found = experiment.strengths.get(budget, {}).get(row.name)
    return options if found is None else options | _over(options, {f"method.{tunable(row)}": found})


def own_options(paper: Paper, row: Row, given: Mapping[str, Any]) -> dict[str, Any]:
    """The command-line options for a row: those for all rows, then those for this one."""
    common = {key: value for key, value in given.items() if key.partition(".")[0] not in paper.rows}
    start = f"{row.name}."
    return common | {key.removeprefix(start): value for key, value in given.items() if key.startswith(start)}


def _over(options: dict[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
    """Both options, where the later ones replace the earlier: ``method.lam`` and ``lam`` are the same option."""
    for key in later:
        plain = key.removeprefix("method.")
        for same in (plain, f"method.{plain}"):
            options.pop(same, None)
    return dict(later)


def tunable(row: Row) -> str:
    """The option of a row's method that tuning chooses; empty if there is none."""
    knob = methods.get(row.method).tunes
    return knob.name if knob is not None and row.tune is not None else ""
