"""Loading code from outside: files, modules, installed packages, and what is said when they cannot be used."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import drcl
from drcl.lab import methods
from drcl.lab.common import plugins
from drcl.lab.common.plugins import PluginError
from drcl.lab.common.words import reason
from drcl.lab.runs.config import RunConfig
from drcl.lab.runs.execute import execute

pytestmark = pytest.mark.usefixtures("unregistered")
METHOD = """
from dataclasses import dataclass
from typing import ClassVar
from drcl.lab import register
from drcl.lab.methods import Method

@register.method
@dataclass
class Mine(Method):
    name: ClassVar[str] = "NAME"
"""


def method(name: str) -> str:
    return METHOD.replace("NAME", name)


def test_a_file_is_loaded_once_and_again_when_it_changes(tmp_path):
    file = tmp_path / "counted.py"
    count = "import builtins\nbuiltins.loads = getattr(builtins, 'loads', 0) + 1\n"
    file.write_text(method("mine") + count)
    try:
        name = plugins.load(str(file))
        assert name == str(file.resolve())
        first = methods.get("mine")
        plugins.load(name)
        assert __builtins__["loads"] == 1
        assert methods.get("mine") is first
        file.write_text(method("mine") + count + "\n")
        plugins.load(name)
        assert __builtins__["loads"] == 2
        assert methods.get("mine") is not first
    finally:
        del __builtins__["loads"]


def test_a_file_is_found_beside_the_one_that_names_it_then_here_then_by_its_name(tmp_path, monkeypatch):
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text(method(folder))
    monkeypatch.chdir(tmp_path / "here")
    assert plugins.load("mine.py", tmp_path / "there") == str(tmp_path / "there" / "mine.py")
    assert plugins.load("mine.py") == str(tmp_path / "here" / "mine.py")
    assert {"here", "there"} <= set(methods.names())
    moved = tmp_path / "gone" / "mine.py"
    assert plugins.load(str(moved), tmp_path / "there") == str(tmp_path / "there" / "mine.py")


def test_a_copy_is_no_second_plugin(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text(method("mine"))
    assert plugins.load(str(tmp_path / "b" / "mine.py")) == str(tmp_path / "b" / "mine.py")
    assert plugins.load(str(tmp_path / "a" / "mine.py")) == str(tmp_path / "b" / "mine.py")


def test_a_module_is_found_in_the_current_folder_and_a_file_imports_what_lies_beside_it(tmp_path, monkeypatch):
    (tmp_path / "a_module_of_mine.py").write_text(method("mine"))
    (tmp_path / "a_file_of_mine.py").write_text("import a_module_of_mine\n")
    monkeypatch.chdir(tmp_path)
    assert plugins.load("a_module_of_mine") == "a_module_of_mine"
    assert methods.METHODS.whose("mine") == "a_module_of_mine"
    assert methods.METHODS.whose("ewc") == ""
    plugins.load("a_file_of_mine.py")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, r"there is no such file in .*"),
        ("x = (", r"cannot be imported \(SyntaxError: .*\(mine.py, line 1\)\)"),
        ("import no_such_package", r"cannot be imported \(ModuleNotFoundError: No module .*\) \(in mine.py, line 1\)"),
        ("\n\nraise RuntimeError", r"cannot be imported \(RuntimeError\) \(in mine.py, line 3\)"),
        ("import sys\nsys.exit('bye')", r"cannot be imported \(SystemExit: bye\) \(in mine.py, line 2\)"),
        (method("ewc"), r"method 'ewc': drcl has one of that name; give yours another \(in mine.py, line 7\)"),
    ],
)
def test_what_cannot_be_used_is_named_with_its_reason(tmp_path, monkeypatch, content, sentence):
    monkeypatch.chdir(tmp_path)
    if content is not None:
        (tmp_path / "mine.py").write_text(content)
    with pytest.raises(PluginError, match=f"^plugin mine.py:? {sentence}$"):
        plugins.load("mine.py")


def test_a_module_that_is_not_there_or_breaks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        PluginError, match="plugin no_such: there is no such module on Python's path or in the current folder"
    ):
        plugins.load("no_such")
    package = tmp_path / "broken_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "first.py").write_text(method("mine"))
    (package / "second.py").write_text("from broken_package import first\n1 / 0\n")
    with pytest.raises(PluginError, match=r"ZeroDivisionError: .*\) \(in broken_package/second.py, line 2\)"):
        plugins.load("broken_package.second")
    assert "mine" not in methods.names()
    (package / "second.py").write_text("from broken_package import first\n# mended\n")
    plugins.load("broken_package.second")
    assert "mine" in methods.names()


def test_nothing_of_a_broken_plugin_stays(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(method("mine") + "\nraise ValueError('later')\n")
    with pytest.raises(PluginError, match="later"):
        plugins.load(str(file))
    assert "mine" not in methods.names()


def test_two_plugins_cannot_have_the_same_name(tmp_path):
    for name in ("one.py", "two.py"):
        (tmp_path / name).write_text(method("mine"))
    plugins.load(str(tmp_path / "one.py"))
    with pytest.raises(PluginError, match=r"plugin two.py: method 'mine': one.py has one of that name"):
        plugins.load(str(tmp_path / "two.py"))
    assert methods.METHODS.whose("mine") == "one.py"


def test_an_error_in_the_middle_of_a_run_says_whose_it_is(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(method("mine") + "\n    def after_task(self, task):\n        self.state['nothing']\n")
    config = RunConfig.make("digits-permuted", "mine", 0, {"epochs": 1, "limit_per_class": 5}, [str(file)])
    with pytest.raises(KeyError) as caught:
        execute(config, tmp_path / "run")
    assert reason(caught.value) == "nothing (in mine.py, line 13)"
    assert '"error": "nothing (in mine.py, line 13)"' in (tmp_path / "run" / "result.json").read_text()
    assert plugins.blame(ValueError("of ours")) == ""


def test_a_file_that_another_machine_sent_is_loaded_by_its_path_there(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(method("mine"))
    sent = plugins.sources([str(file), "json"])
    assert sent == {str(file): file.read_bytes()}
    file.unlink()
    plugins.supply(sent)
    plugins.load(str(file))
    assert "mine" in methods.names()


def test_where_plugins_came_from(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file, package = tmp_path / "mine.py", tmp_path / "some_package"
    file.write_text(method("mine"))
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "more.py").write_text("a = 1")
    names = [plugins.load("mine.py"), plugins.load("some_package.more")]
    told = plugins.describe(names)
    assert told["mine.py"] == {"sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
    (package / "more.py").write_text("a = 2")
    assert plugins.describe(names)["some_package.more"] != told["some_package.more"]
    assert set(plugins.describe(["numpy"])["numpy"]) == {"sha256", "version"}


# ---- installed packages


def installed(folder: Path, name: str, points: str, **files: str) -> None:
    """A package as pip leaves it: modules, and a folder that says what they are."""
    for module, content in files.items():
        (folder / f"{module}.py").write_text(content)
    about = folder / f"{name}-1.5.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n")
    (about / "entry_points.txt").write_text(points)


def test_entry_points_offer_methods_and_a_broken_one_harms_nobody(tmp_path):
    site = tmp_path / "site"
    site.mkdir()
    installed(site, "good", "[drcl.methods]\nmine = good_module\n", good_module=method("mine"))
    installed(site, "broken", "[drcl.methods]\nother = broken_module\n", broken_module="1 / 0")
    installed(site, "liar", "[drcl.methods]\npromised = liar_module\n", liar_module="")
    code = (
        "from drcl.lab.runs.config import RunConfig\nfrom drcl.lab.common import plugins\n"
        "print(RunConfig.make('digits-permuted', 'mine').plugins, plugins.describe([]))"
    )
    path = os.pathsep.join([str(Path(drcl.__file__).parents[1]), str(site)])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "() {'good': {'version': '1.5'}}"
    said = " ".join(done.stderr.split())
    assert (
        "the method 'other' of the installed package broken cannot be imported (ZeroDivisionError: division by zero) "
        "(in broken_module.py, line 1); it is left out" in said
    )
    assert "the method 'promised' of the installed package liar is left out: loading liar_module registers none" in said
