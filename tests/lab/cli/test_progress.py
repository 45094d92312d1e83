"""The displays, drawn into a pretended terminal and into a pipe."""

from __future__ import annotations

import pytest
from tests.lab.cli.stage import pipe, story, terminal

from drcl.lab.cli.progress import State, watch
from drcl.lab.training.events import Event


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
