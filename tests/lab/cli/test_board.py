"""Many runs at a glance, on a pretended terminal and in a pipe."""

from __future__ import annotations

import math

from tests.lab.cli.stage import pipe, story, terminal

from drcl.lab.cli.board import Line, strip, watch_all
from drcl.lab.sweeps.sweep import Update
from drcl.lab.training.events import Event


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
