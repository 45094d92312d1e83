"""The table of docs/reliability.md has a row for each attack, and the page shows it (`tests/test_tables.py`)."""

from __future__ import annotations

from tests.attack import figures


def test_every_attack_has_a_row_with_its_command() -> None:
    table = figures.table()
    for name in figures.ROWS:
        assert figures.TESTS[name] in table
