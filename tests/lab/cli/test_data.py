"""``drcl data`` as a user types it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from drcl.lab.cli.app import app
from drcl.lab.data import names

runner = CliRunner()


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


def test_list_names_every_set_and_its_status(root: Path) -> None:
    done = runner.invoke(app, ["data", "list"])
    assert done.exit_code == 0
    rows = {line.split()[0]: line for line in done.stdout.splitlines() if line.strip()}
    assert set(names()) <= set(rows)
    assert rows["digits"].rstrip().endswith("built in")
    assert rows["mnist"].rstrip().endswith("fetchable")
    assert rows["celeba"].rstrip().endswith("by hand")
    assert rows["npz"].rstrip().endswith("yours")
    np.savez(root / "mnist.npz")
    rows = {line.split()[0]: line for line in runner.invoke(app, ["data", "list"]).stdout.splitlines() if line.strip()}
    assert rows["mnist"].rstrip().endswith("present")


def test_path(root: Path) -> None:
    assert runner.invoke(app, ["data", "path"]).stdout.strip() == str(root)
    assert runner.invoke(app, ["data", "path", "mnist"]).stdout.strip() == str(root / "mnist")
    done = runner.invoke(app, ["data", "path", "nothing"])
    assert done.exit_code == 1
    assert "there is no data set 'nothing'" in done.output


def test_fetch_what_is_built_in_or_impossible(root: Path) -> None:
    done = runner.invoke(app, ["data", "fetch", "digits"])
    assert (done.exit_code, done.stdout.strip()) == (0, "digits is built in; there is nothing to fetch")
    done = runner.invoke(app, ["data", "fetch", "celeba", "digits"])
    assert done.exit_code == 1
    assert "get img_align_celeba.zip" in done.output
    assert "digits is built in" in done.output  # one failure does not stop the others


@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_fetch_leaves_nothing(root: Path, monkeypatch: pytest.MonkeyPatch, how: int, code: int) -> None:
    def stop(*_: object, **__: object) -> None:
        os.kill(os.getpid(), how)
        time.sleep(5)  # it arrives at the latest here

    monkeypatch.setattr(sys.modules["drcl.lab.data.fetch"], "_get", stop)
    done = runner.invoke(app, ["data", "fetch", "mnist"])
    assert done.exit_code == code, done.output
    assert "stopped; what was not finished is left out" in done.stdout
    assert not (root / "mnist").exists()


def test_verify(root: Path, idx: Callable) -> None:
    done = runner.invoke(app, ["data", "verify"])
    assert (done.exit_code, done.stdout.strip()) == (0, "digits: 1,442 + 355 images in 10 classes")
    (root / "mnist").mkdir()
    for name in ("train", "t10k"):
        (root / "mnist" / f"{name}-images-idx3-ubyte").write_bytes(idx(np.zeros((2, 28, 28))))
        (root / "mnist" / f"{name}-labels-idx1-ubyte").write_bytes(idx(np.zeros(2)))
    done = runner.invoke(app, ["data", "verify"])
    assert done.exit_code == 1
    assert "mnist: " in done.output
    assert "has SHA-256" in done.output


def test_python_dash_m(root: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "drcl", "data", "path"],
        env={"PYTHONPATH": ":".join(sys.path), "DRCL_DATA": str(root), "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == str(root)
