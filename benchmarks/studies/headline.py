"""The tables of the headline in docs/paper.md: every setting that was run, from results/paper/headline*.jsonl at half
width and wide.jsonl at full width.

The runs are made by `drcl paper run headline --budget small`, with `-o model.width=1.0` at full width, and added by
`drcl pack`.
"""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.studies.compared import row, sorted_rows
from benchmarks.studies.records import RESULTS, runs, table

from drcl.lab.paper.contents import paper
from drcl.lab.paper.matching import setting
from drcl.lab.paper.plan import tunable
from drcl.lab.runs.read import Run

HEAD = ("row", "strength", "later rate", "seeds", "average accuracy, %", "backward transfer, points", "when learned, %")


def _cells(run: Run) -> tuple[str, str, str]:
    """Title, strength and rate from the second task on: what tells settings apart."""
    first = next(each for each in paper().rows.values() if each.method == run.method)
    title, key = first.title, tunable(first) or ("strength" if run.method == "drcl" else "")
    strength, later = setting(run, key) if key else None, setting(run, "later_lr")
    if run.method == "drcl":
        printed = setting(run, "splitting") == "douglas-rachford"
        title = f"DRCL, k = {setting(run, 'iterations')}" if printed else paper().rows["drcl-weights"].title
    return title, "" if strength is None else f"{strength:g}", f"{setting(run, 'lr') if later is None else later:g}"


def markdown(packs: str = "headline*") -> str:
    groups: dict[tuple[str, str, str], list[Run]] = {}
    for pack in sorted(RESULTS.glob(f"paper/{packs}.jsonl")):
        for run in runs(f"paper/{pack.name}"):
            groups.setdefault(_cells(run), []).append(run)
    found = []
    for (title, strength, rate), some in groups.items():
        accuracy, cells = row(title, some)
        found.append((accuracy, [title, strength, rate, *cells[1:]]))
    return table(HEAD, sorted_rows(found))


TABLES: dict[str, Callable[[], str]] = {"headline": markdown, "headline wide": lambda: markdown("wide")}
