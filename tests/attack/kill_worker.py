"""A process that forks one for every order it reads, lets it work, and lets it be killed at the place it is told.

``python -m tests.attack.kill_worker`` reads a line of JSON per order: ``work`` and its ``arguments``, the ``folder`` in
which places are counted, and ``at`` and ``way`` of the kill. It answers with the signal or code the child ended with,
the places it passed, and what went wrong. torch is imported once, and a child costs some milliseconds.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import random
import shutil
import sys
import traceback
import urllib.request
import warnings
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import sklearn.datasets
import torch
from tests.attack import kill_data
from tests.attack.kill_points import Points
from torch import nn

from drcl import DRCL, Anchor, Fisher
from drcl.lab import methods
from drcl.lab.common import fields
from drcl.lab.data import fetch, load, registry
from drcl.lab.runs import environment
from drcl.lab.runs.config import RunConfig
from drcl.lab.runs.execute import execute
from drcl.lab.runs.write import Records
from drcl.lab.sweeps import sweep, workers
from drcl.lab.training.step import Step

HOOKS = ("before_task", "before_stage", "optimizer", "after_task", "state_dict", "load_state_dict")


def run(points: Points, config: str, directory: str) -> None:
    """One run; a place is every step, hook and line as well."""
    chosen = RunConfig.from_toml(config)
    points.watch(methods.get(chosen.method), *HOOKS)
    points.watch(Step, "__call__")
    points.watch(Records, "curve", "row", "drift", "save", "load")
    points.watch(Records, "event", counts=lambda this, event: event.kind != "step")  # steps are told by the clock
    execute(chosen, directory)


def sweeping(points: Points, file: str, out: str, jobs: int) -> dict[str, Any]:
    """A sweep, in this process or in processes of its own; they are forked, for a fresh Python takes seconds."""
    if jobs:
        context = multiprocessing.get_context("fork")
        multiprocessing.get_context = lambda method=None: context  # type: ignore[assignment,return-value]
        points.watch(workers._Pool, "_start", "_read", "_reap")
        backend = workers.processes(jobs)
    else:
        points.watch_disk()
        points.watch(Records, "row", "save")
        backend = workers.here
    seen: list[tuple[int, str]] = []

    def tell(update: sweep.Update) -> None:
        if update.kind != "event":
            points.passing(f"hook {update.kind}", lambda: seen.append((update.index, update.kind)))

    todo = sweep.jobs(sweep.read(file), out)
    outcome = sweep.run(todo, backend, tell)
    return {
        "planned": [job.directory.name for job in todo],
        "there": [job.directory.name for job in outcome.there],
        "done": [job.directory.name for job in outcome.done],
        "failed": [f"{job.directory.name}: {why}" for job, why in outcome.failed],
    }


def fetching(points: Points, kind: str, root: str, site: str) -> dict[str, Any]:
    """A data set from an address that is a folder, or from an archive that was put there by hand."""
    case = kill_data.CASES[kind]
    known = replace(registry.entry(case.name), sources=case.sources, hashes={}, counts={})
    registry.ENTRIES.ours[case.name] = known
    urllib.request.urlopen = lambda request, timeout=0: points.passing(  # type: ignore[assignment]
        "open address", lambda: kill_data.Answer(Path(site) / request.full_url.rsplit("/", 1)[1], points)
    )
    points.watch_disk()
    if case.sources:
        fetch(case.name, root)
    return kill_data.seen(load(case.name, root))


def looking(points: Points, kind: str, root: str) -> dict[str, Any]:
    """What is there is loaded, and nothing is fetched or unpacked."""
    case = kill_data.CASES[kind]
    registry.ENTRIES.ours[case.name] = replace(registry.entry(case.name), archives={}, hashes={}, counts={})
    return kill_data.seen(load(case.name, root))


def anchoring(points: Points, path: str, seed: int) -> None:
    """A model consolidated and its anchor saved over another one."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = DRCL(model.named_parameters(), lr=0.1)
    optimizer.consolidate(model, [(torch.randn(8, 4), torch.arange(8) % 3)], Fisher(samples=8))
    assert isinstance(optimizer.anchor, Anchor)
    optimizer.anchor.save(path)


WORK = {"run": run, "sweep": sweeping, "fetch": fetching, "look": looking, "anchor": anchoring}


def child(order: dict[str, Any], report: Path) -> None:
    """Do it, and write down what came of it; never return."""
    warnings.simplefilter("ignore")
    code = 0
    answer: dict[str, Any] = {}
    points = Points(Path(order["folder"]), order.get("at"), order.get("way", "before"), order.get("seed", 0))
    try:
        if order["work"] in ("run", "anchor"):
            points.watch_disk()
        answer["result"] = WORK[order["work"]](points, **order["arguments"])  # type: ignore[operator]
    except Exception:
        code, answer["error"] = 3, traceback.format_exc()
    answer["points"] = points.names
    report.write_text(json.dumps(answer))
    os._exit(code)


def warm_up(scratch: Path) -> None:
    """The first steps import a good part of torch, and options are looked up; every child would do it all again."""
    fields.hints = lru_cache(fields.hints)
    environment._ask = lru_cache(environment._ask)
    small = {"tasks": 2, "epochs": 1, "limit_per_class": 4, "batch": 4, "model.hidden": [4]}
    for method in ("ewc", "drcl-kronecker"):
        execute(RunConfig.make("digits-split", method, 0, small), scratch / method)
    for method in methods.names():
        RunConfig.make("digits-split", method, 0).to_toml()
    gc.collect()
    gc.freeze()  # what is never collected need not be copied for a child


def serve(scratch: Path) -> None:
    report = scratch / "report"
    for line in sys.stdin:
        report.unlink(missing_ok=True)
        reading, writing = os.pipe()
        number = os.fork()
        if number == 0:
            os.close(reading)
            child(json.loads(line), report)
        os.close(writing)
        status = os.waitpid(number, 0)[1]
        os.read(reading, 1)  # nothing is ever written: it ends when the last process that the child started has ended
        os.close(reading)
        answer = json.loads(report.read_text()) if report.exists() else {}
        answer["code"] = os.waitstatus_to_exitcode(status)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    random.seed(0)
    sklearn.datasets.load_digits = lru_cache(sklearn.datasets.load_digits)
    sklearn.datasets.load_digits()
    place = Path(sys.argv[1])
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    warm_up(place)
    serve(place)
