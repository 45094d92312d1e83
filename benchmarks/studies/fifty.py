"""Fifty tasks, one after the other: the tables of docs/capacity.md, from results/fifty and results/paper.

The runs of permuted MNIST are made by `drcl sweep benchmarks/studies/fifty.toml`, those of Omniglot by `drcl paper run
forget --budget small`; `drcl pack` puts them into results/.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from benchmarks.studies.compared import NAMES
from benchmarks.studies.records import minus, runs, table

from drcl.lab.paper.contents import paper
from drcl.lab.paper.matching import setting
from drcl.lab.paper.plan import tunable
from drcl.lab.runs.read import Run

MOMENTS = (1, 10, 20, 30, 40, 50)
PLACES = {"mnist-permuted": "fifty/runs.jsonl", "omniglot-50": "paper/omniglot.jsonl"}
DIRECTIONS = "DRCL, directions"


def _name(run: Run) -> str:
    """The method and its strength, where it has one that was chosen."""
    printed = run.method == "drcl" and setting(run, "splitting") == "douglas-rachford"
    row = next(each for each in paper().rows.values() if each.method == run.method)
    key = tunable(row) or ("strength" if run.method == "drcl" else "")
    name = DIRECTIONS if run.method == "drcl-kronecker" else "DRCL as printed" if printed else NAMES[run.method]
    return name if not key else f"{name}, {setting(run, key):g}"


def _so_far(matrix: np.ndarray) -> list[float]:
    """The average accuracy of all tasks so far, in per cent, at each moment."""
    return [100 * float(np.mean(matrix[t - 1, :t])) for t in MOMENTS if t <= len(matrix)]


def _newest(matrix: np.ndarray) -> float:
    """The mean accuracy, in per cent, of the last ten tasks when each was new."""
    return 100 * float(np.mean(np.diag(matrix)[-10:]))


def _cells(run: Run) -> Sequence[str]:
    matrix = run.matrix
    numbers = [*_so_far(matrix), 100 * float(matrix[-1, 0]), _newest(matrix)]
    return [_name(run), *(minus(f"{number:.1f}") for number in numbers)]


def markdown(benchmark: str) -> str:
    """A row per method, those with the best accuracy at the end first."""
    head = ["all so far, % · after", *map(str, MOMENTS), "first task at the end", "last ten when new"]
    found = [run for run in runs(PLACES[benchmark]) if run.benchmark == benchmark]
    return table(head, [_cells(run) for run in sorted(found, key=lambda run: -run.value("average_accuracy"))])


TABLES = {f"fifty {name}": (lambda name=name: markdown(name)) for name in PLACES}
