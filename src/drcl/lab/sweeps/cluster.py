"""The runs of a sweep on a Ray cluster: the same jobs as in local processes, scheduled by Ray.

On a cluster that was started elsewhere, a run works in a temporary folder of its machine and sends its results back. If
all machines share the folder, it works there, and an interrupted run continues where it stopped. The code of this
package and plugins that are files are sent along. Everything else they need must be installed there.
"""

from __future__ import annotations

import io
import logging
import os
import shutil
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import drcl
from drcl.lab.common.plugins import sources, supply
from drcl.lab.common.words import reason
from drcl.lab.sweeps.sweep import Backend, Job, Tell, Update
from drcl.lab.sweeps.workers import THREADS, cores, perform, threads_for, throttled

LOCAL = "local"
_INSTALL = 'install it with: pip install "drcl[cluster]"'


class ClusterError(RuntimeError):
    """Ray is not installed or its cluster cannot be reached."""


def on_ray(address: str, *, shared: bool = False, at_once: int | None = None) -> Backend:
    """Connect to the cluster at `address` ("local" starts one here) and return the backend that uses it."""
    try:
        import ray
    except ModuleNotFoundError:
        raise ClusterError(f"--cluster needs Ray; {_INSTALL}") from None
    local = address == LOCAL
    at_once = at_once or (cores() if local else None)
    threads = threads_for(at_once) if local and at_once else 1
    environment: dict[str, Any] = {"env_vars": {name: str(threads) for name in THREADS}}
    common: dict[str, Any] = {"ignore_reinit_error": False, "log_to_driver": False, "logging_level": logging.ERROR}
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # silences a warning that does not matter here
    try:
        if local:
            assert at_once is not None
            ray.init(
                num_cpus=at_once * threads,
                include_dashboard=False,
                runtime_env=environment,
                **common,
            )
        else:
            ray.init(address=address, runtime_env={**environment, "py_modules": [drcl]}, **common)
    except Exception as error:
        raise ClusterError(f"the Ray cluster {address} cannot be used: {reason(error)}") from error

    def run(waiting: Sequence[tuple[int, Job]], tell: Tell) -> None:
        try:
            _drive(waiting, tell, here=local or shared, threads=threads)
        finally:
            ray.shutdown()

    return run


# ---- on this side


def _drive(waiting: Sequence[tuple[int, Job]], tell: Tell, here: bool, threads: int) -> None:
    import ray

    mailbox: Any = ray.remote(num_cpus=0)(_Mailbox).remote()
    work: Any = ray.remote(num_cpus=threads, max_retries=2)(_work)
    absolute = {index: job.directory.resolve() for index, job in waiting}
    pending = {
        work.remote(index, job, str(absolute[index]) if here else None, mailbox, sources(job.config.plugins)): index
        for index, job in waiting
    }

    def read_mail() -> None:
        for index, kind, event in ray.get(mailbox.take.remote()):
            tell(Update(index, kind, event))

    try:
        while pending:
            ready, _ = ray.wait(list(pending), num_returns=1, timeout=0.3)
            read_mail()
            for reference in ready:
                index = pending.pop(reference)
                try:
                    failed, archive = ray.get(reference)
                except Exception as error:  # the machine was lost, or ran out of memory
                    failed, archive = reason(error), None
                if archive is not None:
                    unpack(archive, absolute[index])
                tell(Update(index, "failed", reason=failed) if failed else Update(index, "done"))
    finally:
        for reference in pending:
            ray.cancel(reference, force=True)


def unpack(archive: bytes, directory: Path) -> None:
    """Put the files of a run that took place elsewhere where they belong."""
    directory.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(directory, filter="data")


# ---- on the machines of the cluster


class _Mailbox:
    """Gathers the workers' messages until they are asked for."""

    def __init__(self) -> None:
        self._letters: list[tuple[int, str, Any]] = []

    def put(self, index: int, kind: str, event: Any = None) -> None:
        self._letters.append((index, kind, event))

    def take(self) -> list[tuple[int, str, Any]]:
        letters, self._letters = self._letters, []
        return letters


def _work(
    index: int, job: Job, directory: str | None, mailbox: Any, plugin_files: dict[str, bytes]
) -> tuple[str, bytes | None]:
    """Carry out one job; returns why it failed ("" if it did not) and its files, if they have to travel."""
    mailbox.put.remote(index, "started")
    supply(plugin_files)
    place = Path(directory) if directory else Path(tempfile.mkdtemp(prefix="drcl-"))
    failed = ""
    try:
        perform(
            Job(job.config, place, job.data_root),
            throttled(lambda event: mailbox.put.remote(index, "event", event), every=0.5),
        )
    except Exception as error:
        failed = reason(error)
    if directory:
        return failed, None
    try:
        return failed, pack(place)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def pack(directory: Path) -> bytes:
    """The files of a run without its checkpoint, which is large and of no use once the run is over."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as files:
        for path in sorted(directory.iterdir()):
            if path.name != "checkpoint":
                files.add(path, arcname=path.name)
    return buffer.getvalue()
