"""Runs in processes of this machine: one fresh process a run, as many at a time as there are workers.

A fresh process keeps time and memory of one run apart from the next one's, and a run that brings its process
down takes nothing with it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

import torch

from drcl.lab.common.words import reason
from drcl.lab.runs.execute import execute
from drcl.lab.sweeps.sweep import Backend, Job, Tell, Update

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_EVERY = 0.1  # seconds between two step events of one run; more would only fill the pipe


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_for(workers: int, available: int | None = None) -> int:
    """Threads a process may use so that all workers together do not ask for more than the machine has, and none for
    more than OMP_NUM_THREADS already allows."""
    share = max(1, (available or cores()) // max(1, workers))
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return min(share, int(asked)) if asked.isdigit() and int(asked) > 0 else share


def perform(job: Job, progress: Callable[[Any], None]) -> None:
    """Run one job. Its warnings go into ``notes.txt`` beside its results, a traceback into ``error.txt``: with many
    runs at a time there is no place for them on the screen."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        try:
            execute(job.config, job.directory, progress=progress, data_root=job.data_root)
        except Exception:
            _leave(job, "error.txt", traceback.format_exc())
            raise
        finally:
            words = dict.fromkeys(f"{note.category.__name__}: {note.message}\n" for note in caught)
            _leave(job, "notes.txt", "".join(words))
    (job.directory / "error.txt").unlink(missing_ok=True)


def _leave(job: Job, name: str, text: str) -> None:
    # Only into a directory the run itself made, and never over the reason of a failure: a full disk is one already.
    if text and job.directory.is_dir():
        with suppress(OSError):
            (job.directory / name).write_text(text, encoding="utf-8")


def here(waiting: Sequence[tuple[int, Job]], tell: Tell) -> None:
    """In this very process, one after the other: for short runs that are not worth a process each."""
    for index, job in waiting:
        tell(Update(index, "started"))
        try:
            perform(job, lambda event, index=index: tell(Update(index, "event", event)))  # type: ignore[misc]
        except Exception as error:
            tell(Update(index, "failed", reason=reason(error)))
        else:
            tell(Update(index, "done"))


def processes(workers: int) -> Backend:
    """The backend that keeps `workers` processes busy."""

    def run(waiting: Sequence[tuple[int, Job]], tell: Tell) -> None:
        _Pool(workers, tell).run(waiting)

    return run


# ---- the parent's side


@dataclass
class _Child:
    index: int
    process: SpawnProcess
    pipe: Connection
    ended: bool = False  # it said how it ended; what comes after that does not matter


class _Pool:
    def __init__(self, workers: int, tell: Tell) -> None:
        self.workers, self.tell = max(1, workers), tell
        self.threads = threads_for(workers)
        self.children: list[_Child] = []

    def run(self, waiting: Sequence[tuple[int, Job]]) -> None:
        queue = deque(waiting)
        try:
            while queue or self.children:
                while queue and len(self.children) < self.workers:
                    self._start(*queue.popleft())
                pipes = {child.pipe: child for child in self.children}
                for ready in wait(list(pipes), timeout=0.5):
                    self._read(pipes[ready])  # type: ignore[index]
        finally:
            self._stop()

    def _start(self, index: int, job: Job) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(job, theirs, self.threads), name=f"drcl {job.config.name}")
        with _environment({name: str(self.threads) for name in THREADS}):
            process.start()
        theirs.close()
        self.children.append(_Child(index, process, ours))
        self.tell(Update(index, "started"))

    def _read(self, child: _Child) -> None:
        try:
            kind, content = child.pipe.recv()
        except (EOFError, OSError):
            self._reap(child)
            return
        if kind == "event":
            self.tell(Update(child.index, "event", content))
        else:
            child.ended = True
            self.tell(Update(child.index, kind, reason=content))

    def _reap(self, child: _Child) -> None:
        child.process.join()
        child.pipe.close()
        self.children.remove(child)
        if not child.ended:
            self.tell(Update(child.index, "failed", reason=_death(child.process.exitcode)))

    def _stop(self) -> None:
        """Nothing is lost by ending a run: it goes on from its last checkpoint."""
        for child in self.children:
            child.process.terminate()
        for child in self.children:
            child.process.join(5)
            if child.process.is_alive():
                child.process.kill()
                child.process.join()
            child.pipe.close()
        self.children.clear()


def _death(code: int | None) -> str:
    if code is not None and code < 0:
        name = signal.Signals(-code).name if -code in signal.Signals._value2member_map_ else f"signal {-code}"
        memory = "; the machine may be out of memory, try fewer --jobs" if name == "SIGKILL" else ""
        return f"its process was ended by {name}{memory}"
    return f"its process ended with code {code} and no word"


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """A new process takes its environment from ours; libraries read their thread counts there before our code runs."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


# ---- the child's side


def _work(job: Job, pipe: Connection, threads: int) -> None:
    # Ctrl-C reaches the whole group of processes; the parent alone decides what to do about it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _leave_with_parent()
    torch.set_num_threads(threads)
    try:
        perform(job, throttled(lambda event: pipe.send(("event", event))))
    except Exception as error:
        pipe.send(("failed", reason(error)))
    else:
        pipe.send(("done", ""))


def throttled(send: Callable[[Any], None], every: float = _EVERY) -> Callable[[Any], None]:
    """Pass every event on, but of the many steps only some."""
    last = -every

    def progress(event: Any) -> None:
        nonlocal last
        now = time.monotonic()
        if event.kind == "step" and now - last < every:
            return
        last = now
        send(event)

    return progress


def _leave_with_parent() -> None:
    """A killed parent cannot end its children: they watch for it, or they would hold on to their runs unseen."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
