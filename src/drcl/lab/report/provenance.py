"""How the numbers of a page came about: settings, runs and machines, said once where they agree."""

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
    """What every method was run with; empty where there is only one to speak of."""
    if len(groups) < 2:
        return {}
    first, *others = [_options(g) for g in groups]
    shared = {
        name: {key: value for key, value in options.items() if all(o[name].get(key) == value for o in others)}
        for name, options in first.items()
    }
    return {name: options for name, options in shared.items() if options}


def methods(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Each method with the options that are its own and its runs, each with why it does not count, if so."""
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
    """Versions and machine: one value where the runs agree, every value where they do not."""
    seen: dict[str, dict[str, None]] = {}
    for run in runs:
        for key, value in flat_text(run.environment, between=" ").items():
            # The whole hash of a commit or a file is noise; twelve letters of it are a name.
            brief = value[:12] if re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", value) else value
            seen.setdefault(key.removeprefix("versions "), {})[brief] = None
    return [(key, " / ".join(values)) for key, values in seen.items()]


def relative(path: Path, beside: Path) -> str:
    """As seen from the page; a page that is sent away should not tell where somebody's home directory is."""
    try:
        return Path(os.path.relpath(path.resolve(), beside.resolve())).as_posix()
    except ValueError:  # another drive
        return path.name
