"""The command line: what it prints, its exit codes, and that errors are sentences."""

from __future__ import annotations

import csv
import io
import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

import drcl
import drcl.lab.common.options
import drcl.lab.runs.read
from drcl.lab import benchmarks, methods
from drcl.lab.cli.app import app
from drcl.lab.networks import names as network_names
from drcl.lab.runs.read import Run

SOURCE = str(Path(drcl.__file__).parents[1])
QUICK = ["-o", "tasks=2", "-o", "epochs=1", "-o", "limit_per_class=12"]


def call(*arguments: object):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def command(*arguments: object, **given) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "drcl", *map(str, arguments)]
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120, check=False, **given)


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("runs")
    for method in ("sgd", "drcl"):
        answer = call("run", "digits-permuted", "--method", method, "--out", out, *QUICK)
        assert answer.exit_code == 0, answer.output
    return out


# ---- lists


@pytest.mark.parametrize(
    ("topic", "known"),
    [("benchmarks", benchmarks.names()), ("methods", methods.names()), ("networks", network_names())],
)
def test_list_names_everything_there_is(topic, known):
    answer = call("list", topic)
    assert answer.exit_code == 0
    for name in known:
        assert name in answer.stdout


def test_list_data_is_the_list_of_data_sets():
    assert call("list", "data").stdout == call("data", "list").stdout


def test_list_methods_shows_every_hyperparameter_with_default_and_help():
    shown = " ".join(call("list", "methods", "ewc").stdout.split())
    for row in drcl.lab.common.options.table(methods.get("ewc")):
        assert f"{row['name']} {row['default']} {row['help'][:20]}" in shown


def test_list_of_one_method_tells_its_equations_and_what_is_tuned():
    shown = call("list", "methods", "si").stdout
    assert "Zenke, Poole, Ganguli" in shown
    assert "task end    Omega_i <- max(0, Omega_i + omega_i" in shown  # columns of equations are left alone
    assert "drcl tune chooses c, at first from 0.001 to 1000" in shown
    assert "drcl tune" not in call("list", "methods", "er").stdout


def test_list_methods_shows_what_each_needs_and_can_take():
    shown = [" ".join(line.split()) for line in call("list", "methods").stdout.splitlines()]
    assert "hat yes yes none 1 none no sgd no" in shown
    assert "er no no some 1 any yes any yes" in shown
    assert "er no no some 1 any yes any yes" in " ".join(call("list", "methods", "er").stdout.split())


def test_list_of_an_unknown_name_suggests_the_nearest():
    answer = call("list", "methods", "ewcc")
    assert answer.exit_code == 2
    assert "did you mean 'ewc'?" in answer.stderr


def test_one_benchmark_is_shown_with_its_settings():
    shown = " ".join(call("list", "benchmarks", "digits-permuted").stdout.split())
    assert "kind=mlp, hidden=[128, 128]" in shown
    assert "epochs 20" in shown


def test_version_names_what_a_result_depends_on():
    assert call("version").stdout.startswith(f"drcl {drcl.__version__} (Python ")


# ---- runs


def test_a_run_ends_with_its_table_and_its_place(tmp_path):
    answer = call("run", "digits-permuted", "-m", "sgd", "-s", 3, "--out", tmp_path, "--name", "mine", *QUICK)
    assert answer.exit_code == 0, answer.output
    for number in (1, 2):
        assert f"task {number} of 2: average accuracy" in answer.stdout
    assert "average" in answer.stdout
    assert str(tmp_path / "mine") in answer.stdout
    run = Run.read(tmp_path / "mine")
    assert run.finished
    assert (run.benchmark, run.method, run.seed, run.tasks) == ("digits-permuted", "sgd", 3, 2)
    accuracy = f"{100 * run.value('average_accuracy'):.1f}"
    assert accuracy in answer.stdout


def test_a_finished_run_is_shown_and_not_run_again(tmp_path):
    words = ("run", "digits-permuted", "-m", "sgd", "--out", tmp_path, "--name", "mine", *QUICK)
    call(*words)
    before = (tmp_path / "mine" / "result.json").stat().st_mtime_ns
    answer = call(*words)
    assert answer.exit_code == 0
    assert "finished already" in answer.stdout
    assert (tmp_path / "mine" / "result.json").stat().st_mtime_ns == before


def test_a_config_file_is_read_and_the_command_line_wins(tmp_path):
    file = tmp_path / "a.toml"
    file.write_text(
        'benchmark = "digits-permuted"\nmethod = "ewc"\nseed = 4\n[method_options]\nlam = 7.0\n'
        "[benchmark_options]\ntasks = 2\nepochs = 3\nlimit_per_class = 12\n"
    )
    answer = call("run", "--config", file, "-o", "epochs=1", "--out", tmp_path, "--name", "x", "--precision", "bf16")
    assert answer.exit_code == 0, answer.output
    config = tomllib.loads((tmp_path / "x" / "config.toml").read_text())
    assert (config["method"], config["seed"]) == ("ewc", 4)
    assert config["method_options"]["lam"] == 7.0
    assert config["benchmark_options"]["epochs"] == 1
    assert config["training"]["precision"] == "bf16"
    # the file a run leaves behind is such a file itself
    again = call("run", "--config", tmp_path / "x" / "config.toml", "--out", tmp_path, "--name", "x")
    assert again.exit_code == 0, again.output
    assert "finished already" in again.stdout


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["digits-permutd"], "did you mean 'digits-permuted'?"),
        (["permuted-digits"], "did you mean 'digits-permuted'?"),
        (["digits-permuted", "-m", "dcrl"], "did you mean 'drcl'?"),
        (["digits-permuted", "-o", "strenth=1"], "did you mean 'strength'?"),
        (["digits-permuted", "-o", "strength=much"], "strength='much': give a number"),
        (["digits-permuted", "-o", "strength"], "write key=value"),
        (["digits-permuted", "-o", "strength=-1"], "strength"),
        (["digits-permuted", "--precision", "fp8"], "one of fp32, bf16"),
        (["digits-permuted", "--log", "tensorbord"], "did you mean 'tensorboard'?"),
        (["--config", "nowhere.toml"], "nowhere.toml"),
        ([], "which benchmark?"),
    ],
)
def test_bad_usage_is_one_sentence_and_code_two(words, sentence, tmp_path):
    answer = call("run", *words, "--out", tmp_path / "runs")
    assert answer.exit_code == 2
    told = [line for line in answer.stderr.splitlines() if line.strip()]
    assert len(told) == 1
    assert told[0].startswith("drcl: ")
    assert sentence in told[0]
    assert not (tmp_path / "runs").exists()


def test_a_failure_is_one_sentence_and_code_one(tmp_path):
    (tmp_path / "mine").write_text("in the way")
    answer = call("run", "digits-permuted", "-m", "sgd", "--out", tmp_path, "--name", "mine", *QUICK)
    assert answer.exit_code == 1
    assert "Traceback" not in answer.output
    assert answer.stderr.startswith("drcl: ")


def test_tensorboard_gets_the_numbers_of_a_run(tmp_path):
    answer = call("run", "digits-split", "-m", "sgd", "--out", tmp_path, "--name", "x", "--log", "tensorboard", *QUICK)
    assert answer.exit_code == 0, answer.output
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert EventAccumulator(str(tmp_path / "x" / "tensorboard")).Reload().Tags()["scalars"]


def test_the_real_command_fails_without_a_traceback(tmp_path):
    done = command("run", "digits-permuted", "-o", "epohs=2", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "did you mean 'epochs'?" in done.stderr


def test_control_c_stops_a_run_that_can_go_on(tmp_path):
    words = ["run", "digits-permuted", "-m", "sgd", "--out", str(tmp_path), "--name", "x", "-o", "tasks=4"]
    words += ["-o", "limit_per_class=12", "-o", "epochs=60"]
    process = subprocess.Popen(
        [sys.executable, "-m", "drcl", *words],
        env={**os.environ, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    )
    curve = tmp_path / "x" / "curve.csv"
    end = time.monotonic() + 120
    try:
        # a line of the second task: the checkpoint between the two is there
        while not (curve.exists() and "\n1," in curve.read_text()):
            assert time.monotonic() < end, "it did not come to the second task"
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, errors
    assert "the same command goes on" in output
    assert "Traceback" not in errors
    answer = call(*words)
    assert answer.exit_code == 0, answer.output
    assert "going on from task" in answer.stdout
    assert Run.read(tmp_path / "x").finished


# ---- what is made of runs


def test_table_in_every_format(runs):
    text = call("table", runs).stdout
    assert "sgd" in text
    assert "drcl" in text
    assert call("table", runs, "--format", "markdown").stdout.startswith("### digits-permuted")
    assert r"\toprule" in call("table", runs, "-f", "latex").stdout
    rows = list(csv.DictReader(io.StringIO(call("table", runs, "-f", "csv").stdout)))
    assert {row["method"] for row in rows} == {"sgd", "drcl"}
    for row in rows:
        run = next(run for run in drcl.lab.runs.read.find([runs]) if run.method == row["method"])
        assert float(row["average_accuracy"]) == pytest.approx(float(run.matrix[-1].mean()), abs=1e-9)


def test_table_to_a_file(runs, tmp_path):
    assert call("table", runs, "-f", "csv", "-o", tmp_path / "deep" / "t.csv").exit_code == 0
    assert (tmp_path / "deep" / "t.csv").read_text() == call("table", runs, "-f", "csv").stdout


def test_report_and_figures(runs, tmp_path):
    answer = call("report", runs, "-o", tmp_path / "r.html", "--title", "Mine & yours")
    assert answer.exit_code == 0
    assert "2 finished of 2 runs" in answer.stdout
    assert "Mine &amp; yours" in (tmp_path / "r.html").read_text()
    assert call("figures", runs, "-o", tmp_path / "f", "--format", "svg").exit_code == 0
    files = list((tmp_path / "f").iterdir())
    assert files
    assert {file.suffix for file in files} == {".svg"}


@pytest.mark.parametrize("word", ["report", "table", "figures"])
def test_no_runs_is_bad_usage(word, tmp_path):
    assert call(word, tmp_path / "none").exit_code == 2
    answer = call(word, tmp_path)
    assert answer.exit_code == 2
    assert "there is no run in" in answer.stderr
