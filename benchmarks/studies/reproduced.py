"""The tables of docs/reproduced.md: results/reproduced/tables.toml says which runs stand beside which number."""

from __future__ import annotations

import statistics
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from benchmarks.studies.records import RESULTS, measured, minus, runs, table

from drcl.lab.runs.read import Run

PLACES = ("reproduced/runs.jsonl", "reproduced/full.jsonl")


@cache
def plan() -> dict[str, Any]:
    return tomllib.loads((RESULTS / "reproduced/tables.toml").read_text(encoding="utf-8"))


def chosen(benchmark: str, method: str, where: Mapping[str, Any]) -> list[Run]:
    """One run per seed: the options named in `where` are as they are there."""
    found: dict[int | None, Run] = {}
    for run in (run for place in PLACES for run in runs(place)):
        given = {**run.options("benchmark_options"), **run.options("training"), **run.options("method_options")}
        same = all(given.get(key) == value for key, value in where.items())
        if (run.benchmark, run.method) == (benchmark, method) and same:
            found.setdefault(run.seed, run)
    return list(found.values())


def printed(published: Any) -> str:
    if isinstance(published, list):
        return " to ".join(f"{end:.2f}" for end in published)
    return "" if published is None else f"{published:.2f}".removesuffix(".00").removesuffix("0")


def difference(some: Sequence[Run], published: Any) -> str:
    """Ours less theirs; less the nearer end of a range."""
    if published is None:
        return ""
    here = statistics.mean(100 * run.value("average_accuracy") for run in some)
    ends = published if isinstance(published, list) else [published]
    inside = min(ends) <= here <= max(ends)
    return minus(f"{0.0 if inside else min((here - end for end in ends), key=abs):+.1f}")


def cell(one: Mapping[str, Any], row: Mapping[str, Any], column: Mapping[str, Any]) -> str:
    published = row.get("published")
    if "published" in column:
        return printed(published.get(column["published"]) if isinstance(published, dict) else published)
    some = chosen(one["benchmark"], row["method"], {**row.get("where", {}), **column.get("where", {})})
    measure = column.get("measure", "average_accuracy")
    if not some:
        return "not run" if measure == "average_accuracy" else ""
    return difference(some, published) if measure == "difference" else measured(some, measure)


def reproduced(name: str) -> str:
    one = plan()[name]
    head = ["method", *(column["head"] for column in one["columns"])]
    return table(head, [[row["name"], *(cell(one, row, column) for column in one["columns"])] for row in one["row"]])


TABLES = {name: (lambda name=name: reproduced(name)) for name in plan()}
