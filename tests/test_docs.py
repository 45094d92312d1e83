"""Every example runs: the docstrings of the library, and each python block of README and docs."""

import doctest
import importlib
import os
import pkgutil
import re
from pathlib import Path

import pytest
import torch

import drcl

ROOT = Path(__file__).parents[1]
MODULES = [
    "drcl",
    *(f"drcl.{m.name}" for m in pkgutil.iter_modules(drcl.__path__) if m.name not in ("lab", "__main__")),
]
PAGES = sorted([*ROOT.glob("README.md"), *ROOT.glob("docs/**/*.md")])
BLOCK = re.compile(r"^(?P<indent>[ ]*)```python[ ]*\n(?P<code>.*?)^(?P=indent)```[ ]*$", re.M | re.S)


@pytest.fixture(autouse=True)
def somewhere_else(tmp_path, monkeypatch):
    """An example may write files and draw random numbers."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    assert Path(os.getcwd()) == tmp_path


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name):
    module = importlib.import_module(name)
    names = {"torch": torch, "drcl": drcl, **vars(module)}
    result = doctest.testmod(module, extraglobs=names, optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    assert result.failed == 0


def test_the_optimizers_example_is_among_them():
    finder = doctest.DocTestFinder()
    assert any(t.examples for t in finder.find(drcl.DRCL, "DRCL"))


def blocks(text):
    """Line number and code of each python block."""
    for match in BLOCK.finditer(text):
        code = "".join(line.removeprefix(match["indent"]) for line in match["code"].splitlines(keepends=True))
        yield text[: match.start("code")].count("\n") + 1, code


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_pages(page):
    """The blocks of one page share a namespace, as they would in a session."""
    namespace = {"__name__": "__main__"}
    for line, code in blocks(page.read_text(encoding="utf-8")):
        # Blank lines in front make a traceback point into the page.
        exec(compile("\n" * (line - 1) + code, str(page), "exec"), namespace)


def test_blocks_are_found():
    text = "a\n```python\nx = 1\n```\n\n- b\n\n  ```python\n  y = 2\n  ```\n\n```sh\nls\n```\n```python\nz = 3\n```\n"
    assert list(blocks(text)) == [(3, "x = 1\n"), (9, "y = 2\n"), (16, "z = 3\n")]
