"""Commands, in this process or in one of their own, and a run's events to look at."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from typer.testing import CliRunner

import drcl
from drcl.lab.cli.app import app
from drcl.lab.training.events import Event


def story(tasks: int = 2) -> list[Event]:
    events = [Event("start", 0, tasks)]
    for task in range(tasks):
        events.append(Event("task", task, tasks, epochs=2, step=0, steps=10))
        events.append(Event("step", task, tasks, 0, 2, 5, 10, loss=0.75))
        events.append(Event("epoch", task, tasks, 1, 2, 10, 10, loss=0.5))
        events.append(Event("consolidation", task, tasks))
        events.append(Event("evaluation", task, tasks, accuracy=0.9, average_accuracy=0.8 + task / 10))
    return [*events, Event("finish", tasks - 1, tasks, average_accuracy=0.9)]


def pipe() -> Console:
    return Console(file=io.StringIO(), width=100, force_terminal=False)


def terminal(height: int = 30) -> Console:
    return Console(file=io.StringIO(), width=110, height=height, force_terminal=True, color_system=None)


SOURCE = str(Path(drcl.__file__).parents[1])


QUICK = ["-o", "tasks=2", "-o", "epochs=1", "-o", "limit_per_class=12"]


def call(*arguments: object):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def command(*arguments: object, **given) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "drcl", *map(str, arguments)]
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120, check=False, **given)
