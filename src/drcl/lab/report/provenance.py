"""Where the numbers of a page come from: settings, runs and machines, listed once if they agree."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from drcl.lab.common.tables import flat_text
from drcl.lab.report.groups import Group
from drcl.lab.runs.read import Run

_TABLES = {"benchmark": "benchmark_options", "method": "method_options", "training": "training"}
Options = dict[str, dict[str, str]]  # table -> option -> value


def _options(g: Group) -> Options:
    return {name: flat_text(g.runs[0].options(table)) for name, table in _TABLES.items()}


def shared_options(groups: Sequence[Group]) -> Options:
    """The settings shared by all methods; empty if there is only one method."""
    if len(groups) < 2:
        return {}
    first, *others = [_options(g) for g in groups]
    shared = {
        name: {key: value for key, value in options.items() if all(o[name].get(key) == value for o in others)}
        for name, options in first.items()
    }
    return {name: options for name, options in shared.items() if options}


def methods(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Each method with its own options and its runs; a run that does not count has a reason."""
    shared = shared_options(groups)
    found = []
    for g in groups:
        own = {
            name: {key: value for key, value in options.items() if key not in shared.get(name, {})}
            for name, options in _options(g).items()
        }
        reasons = {run.path: reason for run, reason in g.left_out}
        found.append(
            {
                "label": g.label,
                "options": {name: options for name, options in own.items() if options},
                "runs": [(run, reasons.get(run.path, "")) for run in g.runs],
            }
        )
    return found


def environment(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Versions and machine: one value if the runs agree, otherwise every value."""
    seen: dict[str, dict[str, None]] = {}
    for run in runs:
        for key, value in flat_text(run.environment, between=" ").items():
            # Twelve characters of a hash are enough to identify a commit or a file.
            brief = value[:12] if re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", value) else value
            seen.setdefault(key.removeprefix("versions "), {})[brief] = None
    return [(key, " / ".join(values)) for key, values in seen.items()]


def relative(path: Path, beside: Path) -> str:
    """A path relative to the page: a page that is sent to others should not reveal someone's home directory."""
    try:
        return Path(os.path.relpath(path.resolve(), beside.resolve())).as_posix()
    except ValueError:  # another drive
        return path.name
