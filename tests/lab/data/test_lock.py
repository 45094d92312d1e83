"""One process at a time, and a killed holder gives its lock back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import drcl
from drcl.lab.data import DataError
from drcl.lab.data.lock import locked

HOLD = """
import sys, time
from pathlib import Path
from drcl.lab.data.lock import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_whoever_has_no_patience_is_told_and_a_killed_holder_lets_go(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.lock"
    environment = {**os.environ, "PYTHONPATH": str(Path(drcl.__file__).parents[1])}
    words = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            with pytest.raises(DataError, match=r"another process .* has held .*a.lock for 0 s; wait for it or end it"):
                locked(path, patience=0).__enter__()
        finally:
            holder.send_signal(signal.SIGKILL)
    with locked(path, patience=60):
        pass


def test_it_is_given_back_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), locked(tmp_path / "a.lock"):
        _ = 1 / 0
    began = time.monotonic()
    with locked(tmp_path / "a.lock", patience=600):
        pass
    assert time.monotonic() - began < 600
