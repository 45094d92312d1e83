"""One version, wherever it is read."""

import tomllib
from pathlib import Path

import drcl
from drcl import version


def test_the_package_and_its_description_agree():
    whole = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    assert whole["project"]["dynamic"] == ["version"]
    assert whole["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "drcl.version.__version__"}
    assert drcl.__version__ == version.__version__
