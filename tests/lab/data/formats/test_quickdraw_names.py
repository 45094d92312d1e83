"""The 345 names of Quick, Draw!"""

from __future__ import annotations

from drcl.lab.data.formats.quickdraw_names import NAMES


def test_quickdraw_names() -> None:
    assert len(NAMES) == len(set(NAMES)) == 345
    assert tuple(sorted(NAMES)) == NAMES
    assert "basketball" in NAMES
    assert "The Eiffel Tower" in NAMES
