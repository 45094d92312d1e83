"""Fifty tasks, one after the other: the tables of docs/capacity.md, from results/fifty and results/paper.

The runs of permuted MNIST are made by `drcl sweep benchmarks/studies/fifty.toml`, those of Omniglot by `drcl paper run
forget --budget small`; `drcl pack` puts them into results/.
"""

from __future__ import annotations

import numpy as np
from benchmarks.studies.compared import NAMES
from benchmarks.studies.records import runs, table

from drcl.lab.paper.contents import paper
from drcl.lab.paper.matching import setting
from drcl.lab.paper.plan import tunable
from drcl.lab.runs.read import Run

PLACES = {
    "mnist-permuted": ("fifty/runs.jsonl", "fifty/rivals.jsonl"),
    "omniglot-50": ("paper/omniglot.jsonl", "paper/omniglot-rivals.jsonl"),
}
BLOCK = 10


def _name(run: Run) -> str:
    """The method and its strength, where one was chosen."""
    row = next(each for each in paper().rows.values() if each.method == run.method)
    if run.method != "drcl":
        title = "DRCL, directions" if run.method == "drcl-kronecker" else NAMES[run.method]
        key = tunable(row)
    else:
        printed = setting(run, "splitting") == "douglas-rachford"
        title, key = "DRCL as printed" if printed else NAMES[run.method], "strength"
    return f"{title}, {key} {setting(run, key):g}" if key else title


def _blocks(last: np.ndarray) -> list[float]:
    """The mean accuracy at the end of the first ten tasks, the next ten, and so on."""
    return [float(np.mean(last[k : k + BLOCK])) for k in range(0, len(last), BLOCK)]


def markdown(benchmark: str) -> str:
    """A row per method, the best at the end first; accuracies in per cent."""
    found = [run for place in PLACES[benchmark] for run in runs(place) if run.benchmark == benchmark]
    found.sort(key=lambda run: -run.value("average_accuracy"))
    blocks = [f"{k + 1} to {k + BLOCK}" for k in range(0, found[0].tasks if found else 0, BLOCK)]
    body = []
    for run in found:
        numbers = [run.value("average_accuracy"), run.value("learning_accuracy"), *_blocks(run.matrix[-1])]
        body.append([_name(run), *(f"{100 * number:.1f}" for number in numbers)])
    return table(["method", "all tasks at the end, %", "when learned, %", *blocks], body)


TABLES = {f"fifty {name}": (lambda name=name: markdown(name)) for name in PLACES}
