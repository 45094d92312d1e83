"""Every table of results in the docs and the README, from the records in results/.

    python -m benchmarks.tables            writes the tables into their pages; `make tables` calls it
    python -m benchmarks.tables --check    changes nothing, and fails when a table is stale

A page says where a table goes by two marks on lines of their own, `<!-- table: NAME -->` and `<!-- end -->`. A new
table is a function that returns Markdown, under its name in TABLES. Verdicts on the paper come from `drcl paper`.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.speed import ratios
from benchmarks.studies import (
    bias,
    capacity,
    compared,
    fifty,
    headline,
    methods,
    moved,
    norms,
    pictures,
    questions,
    reproduced,
    self_samples,
    solver,
    storage,
    streams,
    texts,
    untold,
)
from benchmarks.studies.records import RESULTS, ROOT
from tests.attack import figures

from drcl.lab.paper import ledger
from drcl.lab.paper.contents import paper
from drcl.lab.paper.layouts import render
from drcl.lab.paper.studies import studies
from drcl.lab.paper.tables import fill
from drcl.lab.paper.verdicts import verdicts
from drcl.lab.runs.read import find

NOWHERE = ROOT / "no-data"  # verdicts must not depend on which data sets this machine has
MARK = re.compile(r"<!-- table: (?P<name>[\w -]+) -->\n(?P<text>.*?)<!-- end -->", re.S)
TABLES: dict[str, Callable[[], str]] = {
    "capacity": capacity.markdown,
    "methods": methods.markdown,
    "moved": moved.markdown,
    "paper table1": lambda: paper_table("table1"),
    "paper table2": lambda: paper_table("table2"),
    "pictures": pictures.markdown,
    "reliability": figures.table,
    "self-samples": self_samples.markdown,
    "storage": storage.markdown,
    "streams": streams.markdown,
    "texts": texts.markdown,
    "untold": untold.markdown,
    "untold sensitivity": untold.sensitivity,
    **{
        f"norms {kind} {net}": (lambda kind=kind, net=net: norms.table(kind, net))
        for kind in ("permuted", "split")
        for net in ("mlp", "cnn")
    },
    "solver": lambda: solver.markdown(list(questions.BENCHMARKS)),
    **bias.TABLES,
    **compared.TABLES,
    **fifty.TABLES,
    **headline.TABLES,
    **questions.TABLES,
    **ratios.TABLES,
    **reproduced.TABLES,
}


def paper_table(name: str) -> str:
    """As `drcl paper show NAME -f markdown` prints it, without columns in which nothing was run."""
    found = fill(paper(), name, find([RESULTS / each for each in ("paper", "cifar100-10", "cifar100-20")]))
    return render(found.only_run(), "markdown").rstrip()


def filled(text: str, tables: Mapping[str, Callable[[], str]] = TABLES) -> str:
    """The page with fresh tables between its marks; a mark of an unknown name is refused."""

    def one(mark: re.Match[str]) -> str:
        if mark["name"] not in tables:
            raise ValueError(f"there is no table {mark['name']!r}; known are {', '.join(sorted(tables))}")
        return f"<!-- table: {mark['name']} -->\n{tables[mark['name']]()}\n<!-- end -->"

    return MARK.sub(one, text)


def ledger_page(text: str) -> str:
    """docs/paper.md, as `drcl paper verdicts results --into docs/paper.md` would write it."""
    found = verdicts(paper(), find([RESULTS]), studies([RESULTS]), NOWHERE)
    return ledger.placed(text, ledger.markdown(paper(), found, ROOT / "docs"))


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def fresh(page: Path) -> str:
    text = filled(page.read_text(encoding="utf-8"))
    return ledger_page(text) if ledger.START in text else text


def unused() -> list[str]:
    """Tables that no page shows."""
    shown = {mark["name"] for page in pages() for mark in MARK.finditer(page.read_text(encoding="utf-8"))}
    return sorted(set(TABLES) - shown)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing, fail when a table is stale")
    args = parser.parse_args()
    new = {page: fresh(page) for page in pages()}
    stale = [page for page in new if new[page] != page.read_text(encoding="utf-8")]
    for page in stale:
        if not args.check:
            page.write_text(new[page], encoding="utf-8")
        print(f"{page.relative_to(ROOT)}: {'stale; run: make tables' if args.check else 'written'}")
    return 1 if stale and args.check else 0


if __name__ == "__main__":
    sys.exit(main())
