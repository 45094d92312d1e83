"""Sweeps: what a file asks for, and running it in processes that may fail, be killed or be interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tomli_w
from typer.testing import CliRunner

import drcl
from drcl.lab.cli.app import app
from drcl.lab.runs.read import Run
from drcl.lab.sweeps import sweep, workers
from drcl.lab.sweeps.names import labels

QUICK = {"tasks": 2, "epochs": 1, "limit_per_class": 12}
SOURCE = str(Path(drcl.__file__).parents[1])


def write(path: Path, **table) -> Path:
    path.write_text(tomli_w.dumps({"benchmarks": ["digits-permuted"], "methods": ["sgd"], **table}))
    return path


# ---- the plan


def test_a_plan_is_the_product_of_its_lists():
    configs = sweep.plan(
        {
            "benchmarks": ["digits-permuted", "digits-split"],
            "methods": ["sgd", "ewc"],
            "seeds": 3,
            "options": {"epochs": 4, "lr": 0.5},
            "benchmark": {"digits-split": {"lr": 0.25}},
            "method": {"ewc": {"kind": "separate"}},
            "grid": {"batch": [16, 64], "ewc": {"lam": [1.0, 2.0, 4.0]}},
        }
    )
    # for each of 2 benchmarks and 3 seeds: 2 of sgd, 2 x 3 of ewc
    assert len(configs) == 2 * 3 * (2 + 6)
    assert len({config.name for config in configs}) == len(configs)
    split = [c for c in configs if c.benchmark == "digits-split" and c.method == "ewc" and c.seed == 2]
    assert {(c.benchmark_options["batch"], c.method_options["lam"]) for c in split} == {
        (batch, lam) for batch in (16, 64) for lam in (1.0, 2.0, 4.0)
    }
    assert {(c.benchmark_options["lr"], c.benchmark_options["epochs"]) for c in split} == {(0.25, 4)}
    assert {c.method_options["kind"] for c in split} == {"separate"}
    assert all(c.benchmark_options["lr"] == 0.5 for c in configs if c.benchmark == "digits-permuted")


def test_runs_that_are_the_same_are_planned_once():
    assert len(sweep.plan({"benchmarks": "digits-split", "methods": ["sgd", "sgd"], "seeds": [1, 1]})) == 1


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({"benchmark": {"digits-split": {}}}, "not among the benchmarks"),
        ({"methods": []}, "methods is \\[\\]; give a list of names"),
        ({"method": ["sgd"]}, "method is .*; make it a table"),
        ({"seed": 3}, "did you mean 'seeds'"),
        ({"seeds": [0.5]}, "seeds is \\[0.5\\]"),
        ({"seeds": 0}, "seeds is 0"),
        ({"grid": {"lr": 0.1}}, "grid.lr is 0.1; give the list"),
        ({"grid": {"ewc": {"lam": [1.0]}}}, "'ewc' is not among the methods"),
        ({"options": {"epohs": 3}}, "did you mean 'epochs'"),
        ({"benchmarks": ["digits-permutd"]}, "did you mean 'digits-permuted'"),
    ],
)
def test_a_wrong_file_is_refused_with_the_remedy(tmp_path, table, sentence):
    with pytest.raises(sweep.SweepError, match=sentence):
        sweep.read(write(tmp_path / "sweep.toml", **table))


def test_a_wrong_file_is_a_usage_error_on_the_command_line(tmp_path):
    (tmp_path / "sweep.toml").write_text("benchmarks = [")
    answer = CliRunner().invoke(app, ["sweep", str(tmp_path / "sweep.toml")])
    assert answer.exit_code == 2
    assert "is not valid TOML" in answer.stderr
    assert CliRunner().invoke(app, ["sweep", str(tmp_path / "none.toml")]).exit_code == 2


def test_labels_say_no_more_than_what_differs():
    plan = {"benchmarks": "digits-split", "methods": ["sgd", "ewc"], "grid": {"ewc": {"lam": [1.0, 10.0]}}}
    assert labels(sweep.plan(plan)) == ["sgd", "ewc lam=1", "ewc lam=10"]
    assert labels(sweep.plan({**plan, "seeds": 2}))[0] == "sgd · seed 0"


def test_threads_are_shared_out(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert [workers.threads_for(jobs, 8) for jobs in (1, 2, 3, 8, 20)] == [8, 4, 2, 1, 1]
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert [workers.threads_for(jobs, 8) for jobs in (1, 2, 3, 8, 20)] == [2, 2, 2, 1, 1]


# ---- running


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


def test_a_process_that_dies_is_a_failed_run_with_its_reason(tmp_path, monkeypatch):
    config = sweep.plan({"benchmarks": "digits-permuted", "methods": "sgd", "options": QUICK})[0]
    monkeypatch.setattr(workers, "_work", _die)
    seen: list[sweep.Update] = []
    outcome = sweep.run(sweep.jobs([config], tmp_path), workers.processes(1), seen.append)
    assert [update.kind for update in seen] == ["started", "failed"]
    assert "SIGKILL" in outcome.failed[0][1]


def _die(job, pipe, threads):
    os.kill(os.getpid(), signal.SIGKILL)


def test_threads_of_a_worker_follow_the_number_of_jobs(tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "_work", _tell_threads)
    monkeypatch.setattr(workers, "threads_for", lambda jobs: 3)
    config = sweep.plan({"benchmarks": "digits-permuted", "methods": "sgd", "options": QUICK})[0]
    outcome = sweep.run(sweep.jobs([config], tmp_path), workers.processes(1))
    assert outcome.failed[0][1] == "3 3"


def _tell_threads(job, pipe, threads):
    pipe.send(("failed", f"{os.environ['OMP_NUM_THREADS']} {threads}"))


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


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_stopped_sweep_leaves_no_process_and_goes_on_where_it_was(tmp_path, start, how):
    file = write(tmp_path / "sweep.toml", options={**QUICK, "epochs": 40, "tasks": 4}, seeds=[0, 1])
    first, second = (tmp_path / "runs" / config.name for config in sweep.read(file))
    process = start(str(file), "--jobs", "1")
    wait_for(lambda: second.is_dir() and Run.read(second).tasks_done >= 1)
    if how == signal.SIGKILL:
        process.kill()
    else:
        os.killpg(process.pid, how)  # as a terminal does it
    output, _ = process.communicate(timeout=60)
    if how == signal.SIGINT:
        assert process.returncode == 130
        assert "stopped with 1 of 2 runs finished" in output
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
