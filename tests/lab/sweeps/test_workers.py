"""Runs in processes that may fail, be killed or be interrupted."""

from __future__ import annotations

import os
import signal

from tests.lab.sweeps.plans import QUICK

from drcl.lab.sweeps import sweep, workers


def test_threads_are_shared_out(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert [workers.threads_for(jobs, 8) for jobs in (1, 2, 3, 8, 20)] == [8, 4, 2, 1, 1]
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert [workers.threads_for(jobs, 8) for jobs in (1, 2, 3, 8, 20)] == [2, 2, 2, 1, 1]


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
