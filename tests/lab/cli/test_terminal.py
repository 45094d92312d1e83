"""Errors are sentences with a meaningful exit code."""

from __future__ import annotations

import codecs
import io
import os
import signal
import subprocess
import sys
import time

import pytest
import typer
from rich.table import Table
from rich.text import Text
from tests.lab.cli.stage import QUICK, SOURCE, call, command
from tests.lab.report.fake_runs import write_run

from drcl.lab.cli import terminal


def test_a_failure_is_one_sentence_and_code_one(tmp_path):
    (tmp_path / "mine").write_text("in the way")
    answer = call("run", "digits-permuted", "-m", "sgd", "--out", tmp_path, "--name", "mine", *QUICK)
    assert answer.exit_code == 1
    assert "Traceback" not in answer.output
    assert answer.stderr.startswith("drcl: ")


def test_the_real_command_fails_without_a_traceback(tmp_path):
    done = command("run", "digits-permuted", "-o", "epohs=2", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "did you mean 'epochs'?" in done.stderr


def test_no_text_gives_orders_to_the_terminal():
    out = io.StringIO()
    screen = terminal.Screen(file=out, force_terminal=True, color_system=None, width=80)
    evil = "a\x1b]0;owned\x07b\x9b2J"
    table = Table(title=evil, caption=evil)
    table.add_column(evil)
    table.add_row(Text(evil))
    for each in (evil, Text(evil), table, Text.assemble((evil, "bold"))):
        screen.print(each, markup=False)
    assert not set(out.getvalue()) & set("\x1b\x07\x9b")
    assert "\\x1b]0;owned" in out.getvalue()


@pytest.mark.parametrize("word", ["table", "verify", "report"])
def test_a_folder_named_with_escape_sequences_is_printed_as_text(tmp_path, word):
    run = write_run(tmp_path, "ewc", name="a\x1b[31m\x1b]0;owned\x07b", done=2)
    answer = call(word, run, *(["-o", tmp_path / "r.html"] if word == "report" else []))
    assert answer.exit_code == 0, answer.output
    assert not set(answer.output) & set("\x1b\x07")
    answer = call(word, tmp_path / "none\x1b[31m")
    assert answer.exit_code == 2
    assert not set(answer.output) & set("\x1b\x07")


def shell(*arguments: object, stdout=subprocess.PIPE, **environment: str) -> subprocess.Popen:
    given = {**os.environ, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1", **environment}
    words = [sys.executable, "-m", "drcl", *map(str, arguments)]
    return subprocess.Popen(words, env=given, stdout=stdout, stderr=subprocess.PIPE)


@pytest.mark.parametrize("environment", [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}])
@pytest.mark.parametrize("utf8", ["0", "1"])
def test_a_terminal_that_knows_ascii_only_gets_ascii(tmp_path, environment, utf8):
    write_run(tmp_path, "größe", 0)
    write_run(tmp_path, "größe", 1)
    process = shell("table", tmp_path, PYTHONUTF8=utf8, **environment)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert errors == b""
    if utf8 == "0" or "PYTHONIOENCODING" in environment:
        assert "+-" in output.decode("ascii")


def test_a_run_on_an_ascii_terminal_ends_well(tmp_path):
    process = shell("run", "digits-permuted", "-m", "sgd", "--out", tmp_path, *QUICK, PYTHONIOENCODING="ascii")
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert b"average" in output


@pytest.mark.parametrize(
    "words", [("list", "methods"), ("table", "RUNS"), ("table", "RUNS", "-f", "csv"), ("version",)]
)
def test_a_reader_that_has_left_is_no_error_to_show(tmp_path, words):
    for seed in range(3):
        write_run(tmp_path, "ewc", seed)
    reading, writing = os.pipe()
    os.close(reading)
    process = shell(*(tmp_path if word == "RUNS" else word for word in words), stdout=writing)
    os.close(writing)
    _, errors = process.communicate(timeout=120)
    assert errors == b""


def test_a_stream_that_was_closed_before_is_no_error(tmp_path):
    write_run(tmp_path, "ewc")
    words = f"exec {sys.executable} -m drcl table {tmp_path} >&-"
    done = subprocess.run(
        ["sh", "-c", words], env={**os.environ, "PYTHONPATH": SOURCE}, capture_output=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_every_sign_we_print_has_a_plain_form():
    for sign, plain in terminal._PLAIN.items():
        assert plain.isascii(), sign
    codecs.register_error("drcl-test", terminal._plain)
    assert "a–b ± ☃".encode("ascii", "drcl-test") == b"a-b +- ?"


@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_both_signals_end_a_block_with_a_word_and_their_code(capsys, how, code):
    before = signal.getsignal(signal.SIGTERM)

    def stopped():
        with terminal.stoppable(lambda: "go on like this"):
            os.kill(os.getpid(), how)
            time.sleep(5)  # it arrives at the latest here

    with pytest.raises(typer.Exit) as left:
        stopped()
    assert left.value.exit_code == code
    assert "go on like this" in capsys.readouterr().out
    assert signal.getsignal(signal.SIGTERM) == before
