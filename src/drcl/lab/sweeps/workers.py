"""Runs in processes of this machine, as many at a time as there are workers.

Starting a process takes many times as long as a short run, so a process that has finished a run gets the next one. It
begins each run as a new process would (see ``surroundings``), and computes the same results bit for bit. A process is
replaced after a failure, after a run with code from outside, after `RUNS` runs, and when its memory has grown by
`MOST_GROWTH`. A run that crashes its process does not affect other runs.
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

from drcl.lab.common import plugins
from drcl.lab.common.words import reason
from drcl.lab.runs import digests
from drcl.lab.runs.execute import execute
from drcl.lab.sweeps import surroundings
from drcl.lab.sweeps.sweep import Backend, Job, Tell, Update

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
MOST_GROWTH = 1 << 30  # memory that a process may retain from its runs, in bytes
_EVERY = 0.1  # seconds between two step events of one run; more would only fill the pipe


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_for(workers: int, available: int | None = None) -> int:
    """Threads per process, so that all workers together do not use more than the machine has, and no process more
    than OMP_NUM_THREADS allows."""
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
    # Only into a directory that the run made; a failed write (such as on a full disk) must not hide the failure itself.
    if text and job.directory.is_dir():
        with suppress(OSError):
            digests.add(job.directory, name, text.encode())


def here(waiting: Sequence[tuple[int, Job]], tell: Tell) -> None:
    """Run jobs in this process, one after the other: for short runs that are not worth a process each."""
    for index, job in waiting:
        tell(Update(index, "started"))
        try:
            perform(job, lambda event, index=index: tell(Update(index, "event", event)))  # type: ignore[misc]
        except Exception as error:
            tell(Update(index, "failed", reason=reason(error)))
        else:
            tell(Update(index, "done"))


RUNS = 50  # runs per process before a new one replaces it


def processes(workers: int, runs: int = RUNS) -> Backend:
    """The backend that keeps `workers` processes busy, each for at most `runs` runs; with 1 every run has its own."""

    def run(waiting: Sequence[tuple[int, Job]], tell: Tell) -> None:
        _Pool(workers, tell, runs).run(waiting)

    return run


# ---- the parent's side


@dataclass
class _Child:
    process: SpawnProcess
    pipe: Connection
    once: bool  # it runs plugin code, which may leave anything behind
    index: int | None = None  # of its current job
    runs: int = 0


class _Pool:
    def __init__(self, workers: int, tell: Tell, runs: int) -> None:
        self.workers, self.tell, self.runs = max(1, workers), tell, runs
        self.threads = threads_for(workers)
        self.children: list[_Child] = []
        self.leaving: list[SpawnProcess] = []

    def run(self, waiting: Sequence[tuple[int, Job]]) -> None:
        queue = deque(waiting)
        try:
            while queue or any(child.index is not None for child in self.children):
                while queue and sum(child.index is not None for child in self.children) < self.workers:
                    self._give(*queue.popleft())
                pipes = {child.pipe: child for child in self.children}
                for ready in wait(list(pipes), timeout=0.5):
                    self._read(pipes[ready])  # type: ignore[index]
                self.leaving = [process for process in self.leaving if process.is_alive()]
        finally:
            self._stop()

    def _give(self, index: int, job: Job) -> None:
        """Give a job to a waiting process, or to a new one. A run with code from outside gets its own process, because
        nobody knows what such code keeps from one run to the next."""
        idle = [child for child in self.children if child.index is None]
        once = any(map(plugins.is_code, job.config.plugins))
        if once:
            for other in idle:
                self._dismiss(other)
        child = self._start(once) if once or not idle else idle[0]
        child.index = index
        child.runs += 1
        self.tell(Update(index, "started"))
        with suppress(OSError):  # it has died; reading from it shows the reason
            child.pipe.send(job)

    def _start(self, once: bool) -> _Child:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, self.threads), name="drcl worker")
        with _environment({name: str(self.threads) for name in THREADS}):
            process.start()
        theirs.close()
        child = _Child(process, ours, once)
        self.children.append(child)
        return child

    def _read(self, child: _Child) -> None:
        try:
            kind, content = child.pipe.recv()
        except (EOFError, OSError):
            self._reap(child)
            return
        assert child.index is not None
        if kind == "event":
            self.tell(Update(child.index, "event", content))
            return
        reason, fit = content
        index, child.index = child.index, None
        if not fit or child.once or child.runs >= self.runs:
            self._dismiss(child)
        self.tell(Update(index, kind, reason=reason))

    def _reap(self, child: _Child) -> None:
        child.process.join()
        child.pipe.close()
        self.children.remove(child)
        if child.index is not None:
            self.tell(Update(child.index, "failed", reason=_death(child.process.exitcode)))

    def _dismiss(self, child: _Child) -> None:
        """It ends by itself once nobody can send it more jobs."""
        child.pipe.close()
        self.children.remove(child)
        self.leaving.append(child.process)

    def _stop(self) -> None:
        """End a run. Nothing is lost: it continues from its last checkpoint."""
        for child in self.children:
            child.process.terminate()
        for process in (*self.leaving, *(child.process for child in self.children)):
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()
        for child in self.children:
            child.pipe.close()
        self.children.clear()
        self.leaving.clear()


def _death(code: int | None) -> str:
    if code is not None and code < 0:
        name = signal.Signals(-code).name if -code in signal.Signals._value2member_map_ else f"signal {-code}"
        memory = "; the machine may be out of memory, try fewer --jobs" if name == "SIGKILL" else ""
        return f"its process was ended by {name}{memory}"
    return f"its process ended with code {code} and no message"


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


def _serve(pipe: Connection, threads: int) -> None:
    """Run what comes through the pipe, one job after the other, until it is closed."""
    # Ctrl-C reaches all processes of the group; only the parent handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _leave_with_parent()
    torch.set_num_threads(threads)
    begin_anew = surroundings.remember()
    room = surroundings.resident() + MOST_GROWTH
    while True:
        try:
            job = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            perform(job, throttled(lambda event: pipe.send(("event", event))))
        except Exception as error:
            # A failed run may have left anything behind.
            pipe.send(("failed", (reason(error), False)))
        else:
            begin_anew()
            pipe.send(("done", ("", surroundings.resident() <= room)))


def throttled(send: Callable[[Any], None], every: float = _EVERY) -> Callable[[Any], None]:
    """Pass on every event, but only some of the many steps."""
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
    """A killed parent cannot end its children, so they watch for that. Otherwise they would keep running unseen."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
