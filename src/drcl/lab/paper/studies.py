"""Reads the CSV files of a solver study (``benchmarks/studies/solver.py``): evidence about the solver."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from drcl.lab.runs.files import number

FIRST = "variant,about,strength,seeds,"  # the first line of such a file begins like this


@dataclass(frozen=True)
class Study:
    """One benchmark's rows, by variant."""

    benchmark: str
    rows: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def value(self, variant: str, column: str) -> float:
        """NaN if the variant was not run."""
        text = self.rows.get(variant, {}).get(column, "")
        try:
            return number(float(text))
        except (TypeError, ValueError):
            return float("nan")


def studies(paths: Iterable[Path]) -> dict[str, Study]:
    """Every study at or below these paths, by benchmark."""
    found: dict[str, Study] = {}
    for path in paths:
        files = sorted(path.rglob("*.csv")) if path.is_dir() else [path] if path.suffix == ".csv" else []
        for file in files:
            with file.open(encoding="utf-8", errors="replace") as lines:
                if not lines.readline().startswith(FIRST):
                    continue
                lines.seek(0)
                rows = {row["variant"]: row for row in csv.DictReader(lines)}
            found.setdefault(file.stem, Study(file.stem, rows))
    return found
