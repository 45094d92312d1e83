"""The sentence above a table: what its numbers say, and no more than they support."""

from __future__ import annotations

import math
from collections.abc import Sequence

from drcl.lab.report.table import BASELINE, Row

_SPACE = "\N{NO-BREAK SPACE}"  # a number and its unit stay on one line


def contestants(table: Sequence[Row]) -> list[Row]:
    """Rows with a result that compete, best average accuracy first."""
    known = [row for row in table if not row.reference and not math.isnan(row.values["average_accuracy"].mean)]
    return sorted(known, key=lambda row: -row.values["average_accuracy"].mean)


def finding(table: Sequence[Row]) -> str:
    """One or two sentences on the rows of one benchmark."""
    ranked = contestants(table)
    if not ranked:
        return "No run of a method is finished yet, so there is nothing to compare."
    best = ranked[0]
    assert best.group is not None
    tasks = best.group.finished[0].tasks
    opening = f"After {tasks} task{'s' if tasks != 1 else ''}, {best.label} holds {_percent(best)} average accuracy"
    return opening + _comparison(ranked) + _price(best, table) + "." + _ceiling(table)


def _accuracy(row: Row) -> float:
    return 100 * row.values["average_accuracy"].mean


def _percent(row: Row) -> str:
    return f"{_accuracy(row):.1f}{_SPACE}%"


def _comparison(ranked: Sequence[Row]) -> str:
    if len(ranked) < 2:
        return ""
    best, second = ranked[:2]
    lead = _accuracy(best) - _accuracy(second)
    if lead < 0.05:  # too small to show in a table
        return f", level with {second.label}"
    text = f", {lead:.1f} points above {second.label}"
    a, b = (row.values["average_accuracy"] for row in (best, second))
    if math.isnan(a.deviation) or math.isnan(b.deviation):
        text += " (one seed each)" if a.n == b.n == 1 else " (too few seeds to know the spread)"
    elif lead <= 100 * (a.deviation + b.deviation):
        text += " (within the spread over seeds)"
    baseline = [row for row in ranked[2:] if row.method == BASELINE]
    if baseline:
        text += f" and {_accuracy(best) - _accuracy(baseline[0]):.1f} above {baseline[0].label}"
    return text


def _price(best: Row, table: Sequence[Row]) -> str:
    parts = []
    time = best.values["relative_time"].mean
    if not math.isnan(time) and best.method != BASELINE:
        parts.append(f"takes {time:.2f} times as long as {BASELINE}")
    unmoved, held = best.values["unmoved"].mean, best.values["directions_held"].mean
    if held >= 0.005:  # an L2 penalty pulls every direction back and holds none exactly
        parts.append(f"holds {100 * held:.0f}{_SPACE}% of the directions of its layers at each later task")
    elif math.isnan(held) and unmoved >= 0.005:
        parts.append(f"leaves {100 * unmoved:.0f}{_SPACE}% of the weights exactly in place at each later task")
    return f"; it {' and '.join(parts)}" if parts else ""


def _ceiling(table: Sequence[Row]) -> str:
    bounds = [row for row in table if row.reference and not math.isnan(row.values["average_accuracy"].mean)]
    if not bounds:
        return ""
    return f" Training on all data at once ({bounds[0].label}) reaches {_percent(bounds[0])}."
