"""Where data lives."""

from __future__ import annotations

from pathlib import Path

import pytest

from drcl.lab.data import data_folder


def test_the_data_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DRCL_DATA", str(tmp_path))
    assert data_folder() == tmp_path
    assert data_folder("/elsewhere") == Path("/elsewhere")
    monkeypatch.delenv("DRCL_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data_folder().name == "data"
    assert "drcl" in data_folder().parts
