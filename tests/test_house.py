"""The house stays tidy: nothing too long to read, no import that dodges a cycle, every module with its tests.

Which room may use which is checked by import-linter (``make check``).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
MODULES = sorted(SOURCE.rglob("*.py"))
LONGEST_FILE, LONGEST_FUNCTION = 400, 70
# Modules of these rooms have a test file of their own name; the others are tested by what they do.
MIRRORED = (
    "benchmarks",
    "cli",
    "common",
    "data",
    "networks",
    "paper",
    "report",
    "runs",
    "streams",
    "sweeps",
    "training",
)
# What draws loads matplotlib, for which ``drcl --help`` should not wait.
LATE = (
    "drcl.lab.report.page",
    "drcl.lab.report.figures",
    "drcl.lab.report.figures.paper",
    "drcl.lab.report.figures.style",
    "drcl.lab.paper.page",
)


def shown(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


@pytest.mark.parametrize("path", [*MODULES, *SOURCE.rglob("*.c")], ids=shown)
def test_a_file_is_short_enough_to_read(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LONGEST_FILE


@pytest.mark.parametrize("path", MODULES, ids=shown)
def test_a_function_is_short_enough_to_read(path):
    long = {}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
            lines = node.end_lineno - node.lineno + 1
            if lines > LONGEST_FUNCTION:
                long[node.name] = lines
    assert not long


def late_imports(tree: ast.AST) -> Iterator[str]:
    """Modules of ours that are imported inside a function."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.ImportFrom) and node.module:
                    yield node.module
                elif isinstance(node, ast.Import):
                    yield from (name.name for name in node.names)


@pytest.mark.parametrize("path", [path for path in MODULES if path.name != "__main__.py"], ids=shown)
def test_no_import_hides_in_a_function(path):
    found = {name for name in late_imports(ast.parse(path.read_text(encoding="utf-8"))) if name.startswith("drcl")}
    if path.is_relative_to(SOURCE / "drcl" / "lab" / "cli"):
        found -= set(LATE)
    assert not found


@pytest.mark.parametrize("room", MIRRORED)
def test_every_module_has_tests_of_its_own_name(room):
    home = SOURCE / "drcl" / "lab"
    missing = []
    for path in (home / room).rglob("*.py"):
        mirror = ROOT / "tests" / "lab" / path.relative_to(home).with_name(f"test_{path.stem.lstrip('_')}.py")
        if path.stem != "__init__" and not mirror.is_file():
            missing.append(mirror.relative_to(ROOT).as_posix())
    assert not missing


def test_every_module_of_the_library_has_tests_of_its_own_name():
    home, missing = SOURCE / "drcl", []
    for path in (p for p in home.rglob("*.py") if not p.is_relative_to(home / "lab")):
        mirror = ROOT / "tests" / path.relative_to(home).with_name(f"test_{path.stem}.py")
        if path.stem not in ("__init__", "__main__", "version") and not mirror.is_file():
            missing.append(mirror.relative_to(ROOT).as_posix())
    assert not missing


@pytest.mark.parametrize("floor", ["drcl", "drcl/lab"])
def test_every_room_is_in_the_picture_of_the_house(floor):
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w.]+/?)`", "".join(re.findall(r"^\| .*$", page, re.M))))
    rooms = {f"{path.name}/" if path.is_dir() else path.name for path in (SOURCE / floor).iterdir()}
    rooms -= {"__init__.py", "__main__.py", "__pycache__/", "py.typed", "lab/"}
    assert rooms <= named


def test_the_checks_can_fail():
    hidden = "def f():\n    from drcl.lab import methods\n    import drcl.prox\n    import json\n"
    assert set(late_imports(ast.parse(hidden))) == {"drcl.lab", "drcl.prox", "json"}
