"""``drcl sweep``: wrong files, and stopping in the middle."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from tests.lab.cli.stage import SOURCE
from tests.lab.sweeps.plans import QUICK, write
from typer.testing import CliRunner

from drcl.lab.cli.app import app
from drcl.lab.runs.read import Run
from drcl.lab.sweeps import sweep


def test_a_wrong_file_is_a_usage_error_on_the_command_line(tmp_path):
    (tmp_path / "sweep.toml").write_text("benchmarks = [")
    answer = CliRunner().invoke(app, ["sweep", str(tmp_path / "sweep.toml")])
    assert answer.exit_code == 2
    assert "is not valid TOML" in answer.stderr
    assert CliRunner().invoke(app, ["sweep", str(tmp_path / "none.toml")]).exit_code == 2


@pytest.fixture
def start(tmp_path):
    """Start ``drcl sweep`` in a group of processes of its own, which does not outlive the test."""
    started: list[subprocess.Popen] = []

    def run(*arguments: str) -> subprocess.Popen:
        process = subprocess.Popen(
            [sys.executable, "-m", "drcl", "sweep", *arguments],
            env={**os.environ, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1"},
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
        )
        started.append(process)
        return process

    yield run
    for process in started:
        if _alive(process.pid):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def wait_for(condition, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


@pytest.mark.parametrize("how", [signal.SIGKILL, *CODES])
def test_a_stopped_sweep_leaves_no_process_and_goes_on_where_it_was(tmp_path, start, how):
    file = write(tmp_path / "sweep.toml", options={**QUICK, "epochs": 40, "tasks": 4}, seeds=[0, 1])
    first, second = (tmp_path / "runs" / config.name for config in sweep.read(file))
    process = start(str(file), "--jobs", "1")
    wait_for(lambda: second.is_dir() and Run.read(second).tasks_done >= 1)
    if how == signal.SIGINT:
        os.killpg(process.pid, how)  # as a terminal does it
    else:
        process.send_signal(how)
    output, errors = process.communicate(timeout=60)
    if how in CODES:
        assert process.returncode == CODES[how]
        assert "stopped with 1 of 2 runs finished" in output
        assert "Traceback" not in errors
    wait_for(lambda: not _alive(process.pid))
    assert Run.read(first).finished
    assert not Run.read(second).finished
    before = (first / "result.json").stat().st_mtime_ns

    again = CliRunner().invoke(app, ["sweep", str(file), "--out", str(tmp_path / "runs")])
    assert again.exit_code == 0, again.output
    assert Run.read(second).finished
    assert (first / "result.json").stat().st_mtime_ns == before


def _alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_one_failed_run_does_not_stop_the_rest_and_a_second_call_repeats_only_that(tmp_path):
    file = write(tmp_path / "sweep.toml", methods=["sgd", "ewc"], options=QUICK, seeds=[0])
    broken, fine = (tmp_path / "runs" / config.name for config in sweep.read(file))
    broken.parent.mkdir()
    broken.write_text("a file where a directory should be")
    command = ["sweep", str(file), "--out", str(tmp_path / "runs"), "--jobs", "2"]
    answer = CliRunner().invoke(app, command)
    assert answer.exit_code == 1, answer.output
    assert f"failed     {broken.name}: " in answer.stdout
    assert "1 of 2 runs failed" in answer.stderr
    assert Run.read(fine).finished
    before = (fine / "result.json").stat().st_mtime_ns

    broken.unlink()
    answer = CliRunner().invoke(app, command)
    assert answer.exit_code == 0, answer.output
    assert "there already" in answer.stdout
    assert Run.read(broken).finished
    assert (fine / "result.json").stat().st_mtime_ns == before


@pytest.mark.parametrize("seeds", [100_000_000, 10_001])
def test_more_runs_than_anybody_wants_are_refused_at_once(tmp_path, seeds):
    file = write(tmp_path / "sweep.toml", seeds=seeds)
    answer = CliRunner().invoke(app, ["sweep", str(file), "--dry-run"])
    assert answer.exit_code == 2
    assert "at most 10,000" in " ".join(answer.stderr.split())
