"""Errors are sentences with a meaningful exit code."""

from __future__ import annotations

from tests.lab.cli.stage import QUICK, call, command


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
