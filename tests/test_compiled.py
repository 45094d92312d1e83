"""Compiling a C file of the package; the fused step's own tests try caches and broken compilers."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from drcl import compiled


def source(folder: Path, text: str) -> Path:
    path = folder / "small.c"
    path.write_text(text)
    return path


def answer(library: ctypes.CDLL) -> int:
    return int(library.answer())


def test_another_text_is_another_build(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DRCL_CACHE", str(tmp_path / "cache"))
    assert compiled.library(source(tmp_path, "int answer(void) { return 41; }"), answer) == 41
    assert compiled.library(source(tmp_path, "int answer(void) { return 42; }"), answer) == 42
    assert len(list((tmp_path / "cache").glob("small-*.so"))) == 2


def test_an_error_is_said_and_not_the_line_that_points_at_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DRCL_CACHE", str(tmp_path / "cache"))
    with pytest.raises(OSError, match=r"could not build it: .*error: .*undeclared"):
        compiled.library(source(tmp_path, "int answer(void) { return wrong; }"), answer)


def test_a_missing_function_is_a_failure_that_callers_expect(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DRCL_CACHE", str(tmp_path / "cache"))
    with pytest.raises(compiled.FAILURES):
        compiled.library(source(tmp_path, "int other(void) { return 1; }"), answer)
