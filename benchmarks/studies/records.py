"""What is kept in results/: runs as packs, trials of tunings as one csv per study; and how tables write numbers.

    python -m benchmarks.studies.records TRIALS.csv --set NAME --to results/STUDY/trials.csv

adds the trials that `drcl tune` left (`trials.csv` in its folder) to a study's file, in place of those of that name.
Runs are added by `drcl pack results/STUDY/runs.jsonl runs/NEW -o results/STUDY/runs.jsonl`.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from drcl.lab.runs.read import Run, find

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"


@cache
def runs(place: str) -> tuple[Run, ...]:
    """The finished runs of a pack or a folder of results/."""
    return tuple(run for run in find([RESULTS / place]) if run.finished)


def rows(path: Path) -> list[dict[str, str]]:
    """The lines of a csv file; none if nothing was measured yet."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def add(path: Path, columns: Sequence[str], new: Iterable[dict[str, Any]]) -> None:
    """Put lines at the end of a csv file."""
    fresh = not path.exists()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        if fresh:
            writer.writeheader()
        writer.writerows(new)


def trials(study: str) -> dict[str, list[dict[str, str]]]:
    """The trials of a study by the name of their set."""
    found: dict[str, list[dict[str, str]]] = {}
    for row in rows(RESULTS / study / "trials.csv"):
        found.setdefault(row["set"], []).append(row)
    return found


def add_trials(source: Path, name: str, to: Path) -> None:
    """Put the trials of `source` into the file `to` under the name of a set."""
    there = [row for row in rows(to) if row["set"] != name]
    there += [{"set": name, **row} for row in rows(source)]
    tasks = sorted({key for row in there for key in row if key.startswith("task_")}, key=lambda key: int(key[5:]))
    columns = ["set", "method", "key", "value", "validation_accuracy", *tasks, "outcome", "run"]
    to.parent.mkdir(parents=True, exist_ok=True)
    with to.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(there)


# ---- how a table writes it


def minus(text: str) -> str:
    """With the minus sign of print."""
    return text.replace("-", "−")


def percent(values: Iterable[float]) -> str:
    """Mean and deviation of shares, in per cent; nothing where one is missing."""
    all_of_them = [100 * value for value in values]
    if not all_of_them or any(math.isnan(value) for value in all_of_them):
        return ""
    spread = f" ± {statistics.stdev(all_of_them):.1f}" if len(all_of_them) > 1 else ""
    return minus(f"{statistics.mean(all_of_them):.1f}{spread}")


def measured(some: Sequence[Run], name: str) -> str:
    return percent([run.value(name) for run in some])


def bold_best(cells: Sequence[float], digits: int = 1) -> list[str]:
    """Numbers as text; the largest ones, as printed, in bold."""
    texts = [minus(f"{cell:.{digits}f}") for cell in cells]
    best = texts[max(range(len(cells)), key=lambda k: cells[k])]
    return [f"**{text}**" if text == best else text for text in texts]


def table(head: Sequence[str], body: Iterable[Sequence[Any]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(map(str, row)) + " |" for row in body]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trials", type=Path)
    parser.add_argument("--set", required=True, dest="name")
    parser.add_argument("--to", type=Path, required=True)
    args = parser.parse_args()
    add_trials(args.trials, args.name, args.to)


if __name__ == "__main__":
    main()
