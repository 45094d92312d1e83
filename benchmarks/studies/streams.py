"""A long stream, one image at a time: the table of docs/capacity.md, from results/streams/runs.jsonl.

The runs are made by `drcl sweep benchmarks/studies/streams.toml`; `drcl pack` puts them into results/.
"""

from __future__ import annotations

import statistics

from benchmarks.studies.compared import NAMES
from benchmarks.studies.records import runs, table

from drcl.lab.paper.matching import series
from drcl.lab.runs.read import Run

BLOCK = 10


def _name(run: Run) -> str:
    own = {"upgd": "UPGD", "drcl": "DRCL as printed", "drcl-kronecker": "DRCL, directions"}
    return own.get(run.method) or NAMES[run.method]


def markdown() -> str:
    """A row per method, the one that learns best over the whole stream first; accuracies in per cent."""
    found = []
    for run in runs("streams/runs.jsonl"):
        online = series(run, "online_accuracy")
        blocks = [statistics.mean(online[k : k + BLOCK]) for k in range(0, len(online), BLOCK)]
        numbers = [statistics.mean(online), *blocks, run.value("average_accuracy")]
        found.append((_name(run), numbers))
    found.sort(key=lambda row: -row[1][0])
    count = len(found[0][1]) - 2 if found else 0
    head = ["method", "all tasks", *(f"{k * BLOCK + 1} to {(k + 1) * BLOCK}" for k in range(count)), "known at the end"]
    return table(head, [[name, *(f"{100 * number:.1f}" for number in numbers)] for name, numbers in found])
