"""Runs in processes that may fail, be killed or be interrupted."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from dataclasses import replace

import pytest
import torch
from tests.lab.sweeps.plans import QUICK

from drcl.lab.sweeps import sweep, workers


def test_threads_are_shared_out(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert [workers.threads_for(jobs, 8) for jobs in (1, 2, 3, 8, 20)] == [8, 4, 2, 1, 1]
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert [workers.threads_for(jobs, 8) for jobs in (1, 2, 3, 8, 20)] == [2, 2, 2, 1, 1]


def test_a_process_that_dies_is_a_failed_run_with_its_reason(tmp_path, monkeypatch):
    config = sweep.plan({"benchmarks": "digits-permuted", "methods": "sgd", "options": QUICK})[0]
    monkeypatch.setattr(workers, "_serve", _die)
    seen: list[sweep.Update] = []
    outcome = sweep.run(sweep.jobs([config], tmp_path), workers.processes(1), seen.append)
    assert [update.kind for update in seen] == ["started", "failed"]
    assert "SIGKILL" in outcome.failed[0][1]


def _die(pipe, threads):
    os.kill(os.getpid(), signal.SIGKILL)


def test_threads_of_a_worker_follow_the_number_of_jobs(tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "_serve", _tell_threads)
    monkeypatch.setattr(workers, "threads_for", lambda jobs: 3)
    config = sweep.plan({"benchmarks": "digits-permuted", "methods": "sgd", "options": QUICK})[0]
    outcome = sweep.run(sweep.jobs([config], tmp_path), workers.processes(1))
    assert outcome.failed[0][1] == "3 3"


def _tell_threads(pipe, threads):
    pipe.recv()
    pipe.send(("failed", (f"{os.environ['OMP_NUM_THREADS']} {threads}", False)))


# ---- one process for many runs

ALL = {"benchmarks": "digits-permuted", "methods": ["sgd", "ewc", "drcl", "er"], "options": QUICK}


def _numbers(directory):
    """What a run has computed, without times and memory."""
    result = json.loads((directory / "result.json").read_text())
    for key in ("seconds",):
        result.pop(key)
    result["per_task"].pop("seconds")
    files = ("model.safetensors", "accuracy.csv", "drift.csv", "curve.csv", "steps.csv", "config.toml")
    return result, [(directory / name).read_bytes() for name in files]


def test_a_warm_process_computes_the_same_as_a_new_one_bit_for_bit(tmp_path):
    configs = sweep.plan(ALL)
    warm, fresh = (sweep.jobs(configs, tmp_path / name) for name in ("warm", "fresh"))
    seen = _watched(warm, workers.processes(1))
    assert len({pid for pid in seen}) == 1
    sweep.run(list(reversed(fresh)), workers.processes(1, 1))  # another order too
    for one, other in zip(warm, fresh):
        assert _numbers(one.directory) == _numbers(other.directory), one.config.name


def _watched(todo, backend):
    """Run and return the process that each run had, as its environment tells."""
    pids = []
    starts = []

    def tell(update):
        if update.kind == "started":
            starts.append(update.index)
        children = multiprocessing.active_children()
        if update.kind == "done":
            pids.extend(child.pid for child in children if child.name == "drcl worker")

    outcome = sweep.run(todo, backend, tell)
    assert not outcome.failed
    assert len(starts) == len(todo)
    return pids


@pytest.mark.usefixtures("unregistered")
def test_code_from_outside_has_a_process_of_its_own_for_every_run(tmp_path):
    """Its own memory of earlier runs is not reset by anybody: with one process the second run would fail."""
    (tmp_path / "counts.py").write_text(
        "from drcl.lab import register\nfrom drcl.lab.methods.sgd import SGD\nseen = []\n"
        "@register.method\nclass Counts(SGD):\n    name = 'counts'\n"
        "    def build(self, model, setting):\n"
        "        seen.append(setting)\n        assert len(seen) == 1\n        return super().build(model, setting)\n"
    )
    configs = sweep.plan({**ALL, "methods": ["counts"], "seeds": 2, "plugins": [str(tmp_path / "counts.py")]})
    assert not sweep.run(sweep.jobs(configs, tmp_path), workers.processes(1)).failed


def test_a_process_is_replaced_after_so_many_runs(tmp_path):
    configs = sweep.plan({**ALL, "methods": ["sgd"], "seeds": 3})
    assert len(set(_watched(sweep.jobs(configs, tmp_path), workers.processes(1, 1)))) >= 2
    assert multiprocessing.active_children() == []


def test_a_killed_process_loses_its_own_run_only(tmp_path):
    configs = sweep.plan({**ALL, "methods": ["sgd", "ewc", "drcl"]})
    todo = sweep.jobs(configs, tmp_path)

    def kill_the_second(update):
        if update.kind == "event" and update.index == 1:
            for child in multiprocessing.active_children():
                child.kill()

    outcome = sweep.run(todo, workers.processes(1), kill_the_second)
    assert [job.config.method for job, _ in outcome.failed] == ["ewc"]
    assert "SIGKILL" in outcome.failed[0][1]
    assert [job.config.method for job in outcome.done] == ["sgd", "drcl"]
    again = sweep.run(todo, workers.processes(1))
    assert (len(again.there), len(again.done)) == (2, 1)


@pytest.mark.usefixtures("unregistered")
def test_a_failure_gets_a_new_process_and_other_plugins_too(tmp_path):
    """A plugin may do anything to its process: here it changes the default kind of numbers."""
    (tmp_path / "spoils.py").write_text("import torch\ntorch.set_default_dtype(torch.float64)\n")
    plain = sweep.plan({**ALL, "methods": ["sgd"]})
    plugged = sweep.plan({**ALL, "methods": ["sgd"], "seeds": [1]})
    spoilt = [replace(config, plugins=(str(tmp_path / "spoils.py"),)) for config in plugged]
    torch.set_default_dtype(torch.float32)  # replacing has loaded it here
    last = sweep.plan({**ALL, "methods": ["sgd"], "seeds": [2]})
    mixed = sweep.jobs([*plain, *spoilt, *last], tmp_path / "mixed")
    outcome = sweep.run(mixed, workers.processes(1))
    assert [job.config.seed for job, _ in outcome.failed] == [1]
    alone = sweep.jobs(last, tmp_path / "alone")
    sweep.run(alone, workers.processes(1, 1))
    assert _numbers(mixed[-1].directory) == _numbers(alone[0].directory)
