"""Every example runs: the docstrings of the library, and each python block of README and docs. Every link leads
somewhere, pages made from the registries are fresh, and the site builds where mkdocs is installed."""

import doctest
import importlib
import json
import os
import pkgutil
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import drcl
from drcl.lab.common import plugins

ROOT = Path(__file__).parents[1]
MODULES = [
    "drcl",
    *(f"drcl.{m.name}" for m in pkgutil.iter_modules(drcl.__path__) if m.name not in ("lab", "__main__")),
]
PAGES = sorted([*ROOT.glob("README.md"), *ROOT.glob("docs/**/*.md")])
BLOCK = re.compile(r"^(?P<indent>[ ]*)```python[ ]*\n(?P<code>.*?)^(?P=indent)```[ ]*$", re.M | re.S)


@pytest.fixture(autouse=True)
def somewhere_else(tmp_path, monkeypatch):
    """An example may write files, draw random numbers and register methods."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    assert Path(os.getcwd()) == tmp_path
    back = [remember() for remember in plugins.SNAPSHOTS]
    yield
    for restore in back:  # what a page registers
        restore()


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


NOTEBOOKS = sorted(ROOT.glob("docs/notebooks/*.ipynb"))


@pytest.mark.parametrize("page", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebooks(page):
    """Their cells are plain Python, so no kernel is needed. A cell that prints has stored what it printed."""
    namespace = {"__name__": "__main__"}
    for number, cell in enumerate(json.loads(page.read_text(encoding="utf-8"))["cells"]):
        if cell["cell_type"] == "code":
            code = "".join(cell["source"])
            exec(compile(code, f"{page}, cell {number}", "exec"), namespace)
            assert bool(cell["outputs"]) == ("print(" in code)


def test_blocks_are_found():
    text = "a\n```python\nx = 1\n```\n\n- b\n\n  ```python\n  y = 2\n  ```\n\n```sh\nls\n```\n```python\nz = 3\n```\n"
    assert list(blocks(text)) == [(3, "x = 1\n"), (9, "y = 2\n"), (16, "z = 3\n")]


LINK = re.compile(r"(?<!\\)\[(?:[^\]\[]|\[[^\]]*\])*\]\((?P<target>[^)\s]+)\)")
LINKED = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("results/*.md")])


def anchors(page):
    """What a link may name behind #, as GitHub and the site make it of headings."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    heads = re.findall(r"^#+ +(.*)$", prose, re.M)
    return {re.sub(r"[^\w\- ]", "", head.replace("`", "")).strip().lower().replace(" ", "-") for head in heads}


def broken(page):
    text = re.sub(r"^ *```.*?^ *```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    for match in LINK.finditer(text):
        path, _, anchor = match["target"].partition("#")
        if re.match(r"[a-z]+:", path):
            continue
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            yield match["target"]


@pytest.mark.parametrize("page", LINKED, ids=lambda p: str(p.relative_to(ROOT)))
def test_links(page):
    assert list(broken(page)) == []


def test_broken_links_are_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# A `b` c!\n[x](other.md) [y](#a-b-c) [z](#d) [w](https://a.b) `[v](n.md)` [![p](q.png)](page.md)\n"
    )
    assert list(broken(page)) == ["other.md", "#d"]


def test_reference_pages_are_what_the_registries_say():
    command = [sys.executable, str(ROOT / "docs/reference/generate.py"), "--check"]
    made = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT / "src")})
    assert made.returncode == 0, made.stderr


@pytest.mark.skipif(find_spec("mkdocs") is None, reason="make docs installs mkdocs")
def test_the_site_builds_without_a_broken_link(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    assert (tmp_path / "site/reference/library.html").is_file()
