"""One version, wherever it is read."""

import tomllib
from pathlib import Path

import drcl
from drcl import version


def test_the_package_and_its_description_agree():
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert drcl.__version__ == version.__version__ == project["version"]
