"""What an attack came to, as a file that ``figures.py`` makes the table of docs/reliability.md from.

``DRCL_ATTACK_FIGURES=results/reliability`` writes ``NAME.json`` there; without it nothing is written.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.attack.budget import times

VARIABLE = "DRCL_ATTACK_FIGURES"


def keep(name: str, request: pytest.FixtureRequest, **figures: Any) -> None:
    """Write down what came of the attack ``name``, how hard it was and how many tests failed, and print it."""
    failed = request.session.testsfailed
    text = json.dumps({"attack": times(), "failed": failed, **figures}, indent=2, sort_keys=True)
    print(f"{name}: {text}")
    if folder := os.environ.get(VARIABLE):
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / f"{name}.json").write_text(text + "\n", encoding="utf-8")
