"""Whether a run's files are what was written: every file of a finished run, the checkpoints, the rows they know of."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from drcl.lab.data.errors import DataError
from drcl.lab.data.lock import locked
from drcl.lab.runs.checkpoint import CheckpointError, Checkpoints
from drcl.lab.runs.read import Run
from drcl.lab.runs.write import Table

State = Literal["whole", "unfinished", "running", "no digests stored", "damaged"]


@dataclass(frozen=True)
class Verdict:
    """The state of one run, and the sentences that explain it."""

    path: Path
    state: State
    words: tuple[str, ...] = ()


def verify(run: Run) -> Verdict:
    """Check every file of a run, without changing anything."""
    if _at_work(run.path):
        return Verdict(run.path, "running", ("another process is working on it",))
    wrong = (*run.damage, *_checkpoints(run.path, finished=run.result.get("finished") is True))
    wrong += () if run.damage else run.broken
    wrong += () if run.readable or run.damage else run.problems
    if wrong:
        return Verdict(run.path, "damaged", tuple(dict.fromkeys(wrong)))
    if run.finished:
        return Verdict(run.path, "whole" if run.sealed else "no digests stored", run.problems)
    return Verdict(run.path, "unfinished", (run.status.removeprefix("unfinished, "), *run.problems))


def _at_work(directory: Path) -> bool:
    lock = directory / ".lock"
    if not lock.is_file():
        return False
    try:
        with locked(lock, patience=0):
            return False
    except DataError:
        return True
    except OSError:  # a read-only folder: no process of ours writes there
        return False


def _checkpoints(directory: Path, finished: bool) -> list[str]:
    """What is wrong with the checkpoints, and with the rows that the newest sound one knows of."""
    kept = Checkpoints(directory / "checkpoint")
    wrong, marks = [], None
    for number in reversed(kept.numbers()):
        try:
            state = kept.read(number)
            marks = marks or state["files"]
        except CheckpointError as error:
            wrong.append(f"checkpoint/{number:08d} is damaged ({error})")
        except KeyError:
            wrong.append(f"checkpoint/{number:08d} is not one of a run")
    if marks is not None and not finished:
        for name, mark in marks.items():
            lost = Table(directory / f"{name}.csv", ()).wrong(mark)
            wrong += [lost.replace(str(directory / f"{name}.csv"), f"{name}.csv")] if lost else []
    return wrong
