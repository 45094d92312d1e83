"""The wheel and the sdist: complete, of one version, and of use where nothing else of this repository is.

They are built here only where the build tool is installed (``make package``); an installation from nothing, with all
dependencies, is the business of the workflow that builds a release.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import drcl

HOME = Path(__file__).parents[1]
_build = importlib.util.find_spec("build")  # without an origin if it is only a folder of that name: the built site
needs_build = pytest.mark.skipif(
    _build is None or _build.origin is None or importlib.util.find_spec("setuptools") is None,
    reason="the build tool is not installed; make package installs it",
)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder of a wheel that was made from an sdist, and of that sdist."""
    place = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(place), str(HOME)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=place)
    assert done.returncode == 0, done.stdout + done.stderr
    return place


def _data_files():
    """Every file of the package that is no Python, as a wheel names it."""
    source = HOME / "src"
    endings = {".c", ".toml", ".html", ".css", ".js", ".typed"}
    return {path.relative_to(source).as_posix() for path in (source / "drcl").rglob("*") if path.suffix in endings}


def _modules():
    return {path.relative_to(HOME / "src").as_posix() for path in (HOME / "src" / "drcl").rglob("*.py")}


@needs_build
def test_the_wheel_and_the_sdist_are_complete_and_of_one_version(built):
    (wheel,), (sdist,) = built.glob("*.whl"), built.glob("*.tar.gz")
    assert wheel.name == f"drcl-{drcl.__version__}-py3-none-any.whl"
    assert sdist.name == f"drcl-{drcl.__version__}.tar.gz"
    inside = set(zipfile.ZipFile(wheel).namelist())
    assert "drcl/splitting/step.c" in inside
    assert "drcl/py.typed" in inside
    assert not (_data_files() | _modules()) - inside
    assert not any(name.startswith("tests/") for name in inside)
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert not {f"src/{name}" for name in _data_files() | _modules()} - names
    assert {"LICENSE", "README.md", "pyproject.toml"} <= names


_SMOKE = """
import drcl, pathlib, sys, torch
place = pathlib.Path(sys.argv[1])
assert place in pathlib.Path(drcl.__file__).parents, drcl.__file__
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = drcl.DRCL(model.parameters(), lr=0.1, backend=sys.argv[2])
x, y = torch.randn(32, 4), torch.randint(0, 2, (32,))
for task in range(2):
    for _ in range(5):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    optimizer.consolidate(model, [(x, y)])
assert optimizer.tasks == 2
assert all(torch.isfinite(p).all() for p in model.parameters())
"""


@needs_build
def test_the_wheel_works_where_nothing_else_of_this_repository_is(built, tmp_path):
    (wheel,) = built.glob("*.whl")
    place = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as archive:  # what installing a wheel of plain Python does, without its dependencies
        archive.extractall(place)
    environment = os.environ | {"PYTHONPATH": str(place), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "drcl"]
    for arguments in ([*command, "--version"], [*command, "list", "benchmarks"]):
        done = subprocess.run(arguments, capture_output=True, text=True, cwd=tmp_path, env=environment)
        assert done.returncode == 0, done.stderr
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.stdout.startswith(f"drcl {drcl.__version__} ")
    # "auto" compiles the C source on first use where there is a compiler; without one it falls back, and says so.
    for compiler in ({}, {"CC": str(tmp_path / "no-compiler"), "PATH": ""}):
        told = subprocess.run(
            [sys.executable, "-c", _SMOKE, str(place), "auto"],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=environment | compiler,
        )
        assert told.returncode == 0, told.stderr


def test_the_version_is_written_in_one_place_only():
    """pyproject.toml reads it from the package; CITATION.cff must repeat it, and agrees."""
    project = (HOME / "pyproject.toml").read_text(encoding="utf-8")
    assert '\nversion = "' not in project
    assert 'version = { attr = "drcl.version.__version__" }' in project
    assert f"\nversion: {drcl.__version__}\n" in (HOME / "CITATION.cff").read_text(encoding="utf-8")


def test_pre_commit_makes_the_checks_of_make_check():
    makefile = (HOME / "Makefile").read_text(encoding="utf-8")
    checks = makefile.partition("\ncheck: install\n")[2].partition("\n\n")[0]
    commands = [line.strip().removeprefix("$(BIN)/") for line in checks.splitlines()]
    hooks = (HOME / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    assert len(commands) == 4
    for command in commands:
        assert f"entry: .venv/bin/{command}\n" in hooks, command
