"""The displays, drawn into a pretended terminal and into a pipe."""

from __future__ import annotations

import io
import math

import pytest
from rich.console import Console

from drcl.lab.cli.board import Line, strip, watch_all
from drcl.lab.cli.progress import State, watch
from drcl.lab.common.words import clock, percent, reason
from drcl.lab.sweeps.sweep import Update
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


def test_the_share_done_counts_steps_within_a_task():
    state, shares = State(), []
    for event in story():
        state.update(event)
        shares.append(state.share)
    # start; task 1: begins, half, whole, consolidated, evaluated; the same for task 2; finish
    assert shares == pytest.approx([0, 0, 0.25, 0.5, 0.5, 0.5, 0.5, 0.75, 1, 1, 1, 1])


def test_a_resumed_run_counts_the_tasks_before():
    state = State()
    state.update(Event("resume", 3, 8, step=5, steps=10))
    assert state.done == 3
    state.update(Event("step", 3, 8, 0, 2, 5, 10))
    assert state.share == pytest.approx(3.5 / 8)


def test_a_pipe_gets_one_line_a_task():
    console = pipe()
    with watch(console, "digits · sgd") as show:
        for event in story():
            show(event)
    lines = console.file.getvalue().splitlines()
    assert lines[0] == "digits · sgd"
    assert lines[1].startswith("  task 1 of 2: average accuracy 80.0 %, loss 0.5000, ")
    assert lines[2].startswith("  task 2 of 2: average accuracy 90.0 %, loss 0.5000, ")
    assert len(lines) == 3


def test_a_terminal_gets_bars_and_numbers():
    console = terminal()
    with watch(console, "digits · sgd") as show:
        for event in story():
            show(event)
    last = console.file.getvalue().rpartition("digits · sgd")[2]
    assert "2 of 2" in last
    assert "90.0 %" in last


def test_the_board_shows_what_runs_what_is_done_and_what_failed(tmp_path):
    console = terminal()
    lines = [Line(name, tmp_path / name) for name in ("one", "two", "three", "four")]
    with watch_all(console, lines, "sweep.toml") as board:
        board.update(Update(0, "there"))
        for event in story():
            board.update(Update(1, "event", event))
        board.update(Update(1, "done"))
        board.update(Update(2, "failed", reason="the disk is full"))
    last = console.file.getvalue().rpartition("sweep.toml")[2]
    assert "3 of 4 runs" in last
    assert "1 failed" in last
    shown = {line.split()[1]: line for line in last.splitlines()[1:] if len(line.split()) > 1}
    assert "there already" in shown["one"]
    assert "90.0 %" in shown["two"]
    assert "the disk is full" in shown["three"]
    assert set(shown) == {"one", "two", "three", "four"}


def test_a_long_board_keeps_what_is_running(tmp_path):
    console = terminal(height=12)
    lines = [Line(f"run-{k:02d}", tmp_path / str(k)) for k in range(40)]
    with watch_all(console, lines, "sweep") as board:
        for k in range(20):
            board.update(Update(k, "done"))
        board.update(Update(30, "started"))
        visible = [line.label for line in board._visible()]
    assert "run-30" in visible
    assert len(visible) == 6


def test_the_board_in_a_pipe_is_one_line_a_run(tmp_path):
    console = pipe()
    with watch_all(console, [Line("a", tmp_path / "a"), Line("b [x]", tmp_path / "b")]) as board:
        board.update(Update(0, "failed", reason="lam=[3] is wrong"))
        board.update(Update(1, "event", Event("evaluation", 0, 1, average_accuracy=0.5)))
        board.update(Update(1, "done"))
    first, second = console.file.getvalue().splitlines()
    assert first == "[1/2] a: failed: lam=[3] is wrong"
    assert second.startswith("[2/2] b [x]: average accuracy 50.0 %")


def test_a_strip_is_as_high_as_the_accuracy():
    assert strip([0.0, 0.5, 1.0, math.nan]).plain == "▁▅█·"


def test_words():
    assert [clock(s) for s in (0.04, 8.24, 59.97, 65, 7380)] == ["0.0 s", "8.2 s", "1:00 min", "1:05 min", "2:03 h"]
    assert [percent(v) for v in (0.1234, 1.0, math.nan)] == ["12.3 %", "100.0 %", "–"]
    assert reason(FileNotFoundError(2, "No such file", "x.toml")) == "x.toml: No such file"
    assert reason(KeyError("tasks")) == "tasks"
    assert reason(ValueError("a\n  b")) == "a b"
    assert reason(ValueError()) == "ValueError"
