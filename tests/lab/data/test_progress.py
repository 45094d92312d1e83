"""Progress bars on a terminal, silence elsewhere."""

from __future__ import annotations

import pytest

from drcl.lab.data.progress import bar


@pytest.mark.parametrize("unit", ["items", "bytes"])
def test_nothing_is_said_where_nobody_looks(unit: str, capsys: pytest.CaptureFixture) -> None:
    with bar("reading", 10, unit) as advance:
        advance(3)
        advance(7)
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


def test_a_terminal_gets_its_name_and_its_count(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with bar("reading mnist", 10) as advance:
        advance(10)
    assert "reading mnist" in capsys.readouterr().err
