"""Tables inside tables, as TOML and JSON have them, laid flat: one name for each value."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def flat(table: Mapping[str, Any], prefix: str = "", between: str = ".") -> dict[str, Any]:
    """``{"model": {"kind": "mlp"}}`` as ``{"model.kind": "mlp"}``; `prefix` stands before every name."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}{between}", between)
        else:
            found[f"{prefix}{key}"] = value
    return found


def flat_text(table: Mapping[str, Any], prefix: str = "", between: str = ".") -> dict[str, str]:
    """The same with every value as text, for comparing and for showing."""
    return {
        name: value if isinstance(value, str) else json.dumps(value, default=str)
        for name, value in flat(table, prefix, between).items()
    }
