"""Where a run took place: told with its versions, and without a guess where nothing is known."""

from __future__ import annotations

import json
import platform
import subprocess

import numpy as np
import pytest
import torch

import drcl
from drcl.lab.runs import environment


def test_it_tells_what_a_result_depends_on():
    told = environment.describe(torch.device("cpu"))
    assert json.loads(json.dumps(told)) == told
    versions = told["versions"]
    assert versions["python"] == platform.python_version()
    assert versions["drcl"] == drcl.__version__
    assert versions["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert versions["numpy"] == np.__version__
    assert told["machine"]["device"] == "cpu"
    assert told["threads"] == torch.get_num_threads()
    assert told["processes"] == 1


@pytest.mark.parametrize(
    ("told", "name"),
    [
        ("processor\t: 0\nvendor_id\t: A\ncpu family\t: 26\nmodel\t\t: 2\nmodel name\t: AMD EPYC\nstepping\t: 1\n\n"
         "processor\t: 1\nmodel\t\t: 9\n", "AMD EPYC (26.2.1)"),
        ("processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n", " (0x41.0xd0c)"),
        ("", ""),
        (None, ""),
    ],
)  # fmt: skip
def test_the_model_of_the_processor(tmp_path, told, name):
    file = tmp_path / "cpuinfo"
    if told is not None:
        file.write_text(told)
    usual = platform.processor() or platform.machine()
    assert environment.processor(file) == (name if name.startswith("AMD") else usual + name)


def test_a_package_that_is_not_installed_has_no_version():
    assert environment._version("no such package") is None


def test_the_commit_of_the_source_and_whether_it_was_changed(tmp_path):
    def git(*words: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True)

    assert environment._git(tmp_path) is None  # no repository tracks it
    git("init")
    folder = tmp_path / "package"
    folder.mkdir()
    file = folder / "a.py"
    file.write_text("a = 1\n")
    assert environment._git(folder) is None  # there is one now, but it does not track this folder
    git("add", ".")
    git("commit", "-m", "one")
    found = environment._git(folder)
    assert found is not None
    assert len(found["commit"]) == 40
    assert found["dirty"] is False
    file.write_text("a = 2\n")
    again = environment._git(folder)
    assert again == {"commit": found["commit"], "dirty": True}


@pytest.mark.parametrize("before", [{}, {"plugins": None}, {"plugins": [1]}, {"plugins": "x"}])
def test_a_damaged_environment_has_no_plugins_to_compare(before):
    assert environment.changed_plugins(before, {"plugins": {"a.py": {"sha256": "1"}}}) == []
