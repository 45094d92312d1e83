"""Durations, shares and exceptions in words."""

from __future__ import annotations

import math

from drcl.lab.common.words import clock, percent, reason


def test_words():
    assert [clock(s) for s in (0.04, 8.24, 59.97, 65, 7380)] == ["0.0 s", "8.2 s", "1:00 min", "1:05 min", "2:03 h"]
    assert [percent(v) for v in (0.1234, 1.0, math.nan)] == ["12.3 %", "100.0 %", "–"]
    assert reason(FileNotFoundError(2, "No such file", "x.toml")) == "x.toml: No such file"
    assert reason(KeyError("tasks")) == "tasks"
    assert reason(ValueError("a\n  b")) == "a b"
    assert reason(ValueError()) == "ValueError"
