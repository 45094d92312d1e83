"""``drcl run``: what it prints, its config files, its exit codes, and going on after Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import tomllib

import pytest
from tests.lab.cli.stage import QUICK, SOURCE, call

from drcl.lab.runs.read import Run


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


OWN = """
[my-digits]
about = "digits, five classes per task"
data = "digits"
builder = "class-split"
arguments = { classes_per_task = 5 }
scenario = "task"
tasks = 2
classes = 5
model = { kind = "mlp", hidden = [16] }
epochs = 1
batch = 64
lr = 0.05
momentum = 0.9
"""


@pytest.mark.usefixtures("unregistered")
def test_a_benchmark_of_ones_own_is_run_from_its_file(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(OWN)
    answer = call("run", file, "-m", "sgd", "--tasks", 1, "--out", tmp_path)
    assert answer.exit_code == 0, answer.output
    (path,) = tmp_path.glob("my-digits-sgd-seed0*")
    run = Run.read(path)
    assert (run.finished, run.benchmark, run.tasks) == (True, "my-digits", 1)
    file.write_text(OWN.replace("epochs", "epoch"))
    answer = call("run", file, "-m", "sgd", "--out", tmp_path)
    assert answer.exit_code == 2
    assert "mine.toml: [my-digits]: 'epoch' is not a setting" in " ".join(answer.output.split())


def test_tasks_is_an_option_of_its_own(tmp_path):
    call("run", "digits-permuted", "-m", "sgd", "--tasks", 1, "-o", "epochs=1", "--out", tmp_path, "--name", "mine")
    assert Run.read(tmp_path / "mine").tasks == 1


def test_a_finished_run_is_shown_and_not_run_again(tmp_path):
    words = ("run", "digits-permuted", "-m", "sgd", "--out", tmp_path, "--name", "mine", *QUICK)
    call(*words)
    before = (tmp_path / "mine" / "result.json").stat().st_mtime_ns
    answer = call(*words)
    assert answer.exit_code == 0
    assert "already finished" in answer.stdout
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
    assert "already finished" in again.stdout


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
        ([], "no benchmark given"),
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


def test_tensorboard_gets_the_numbers_of_a_run(tmp_path):
    answer = call("run", "digits-split", "-m", "sgd", "--out", tmp_path, "--name", "x", "--log", "tensorboard", *QUICK)
    assert answer.exit_code == 0, answer.output
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert EventAccumulator(str(tmp_path / "x" / "tensorboard")).Reload().Tags()["scalars"]


@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_a_run_that_can_go_on(tmp_path, how, code):
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
        process.send_signal(how)
        output, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == code, errors
    assert "the same command continues" in output
    assert list((tmp_path / "x" / "checkpoint").iterdir())
    assert "Traceback" not in errors
    answer = call(*words)
    assert answer.exit_code == 0, answer.output
    assert "continuing from task" in answer.stdout
    assert Run.read(tmp_path / "x").finished


@pytest.mark.parametrize(
    "name", ["../../x", "..", ".", "", "a/b", "/tmp/x", "a\\b", ".hidden", "a\nb", "a\x1b[2J", "\x00"]
)
def test_a_name_does_not_leave_its_folder(tmp_path, name):
    answer = call("run", "digits-permuted", "-m", "sgd", "--out", tmp_path / "in" / "out", "--name", name, *QUICK)
    assert answer.exit_code == 2
    assert answer.stderr.startswith("drcl: --name")
    assert "--out chooses the folder" in " ".join(answer.stderr.split())
    assert not list(tmp_path.iterdir())


def test_a_name_may_have_letters_of_every_language(tmp_path):
    answer = call("run", "digits-permuted", "-m", "sgd", "--out", tmp_path, "--name", "größe 1.2, λ=3", *QUICK)
    assert answer.exit_code == 0, answer.output
    assert Run.read(tmp_path / "größe 1.2, λ=3").finished


def test_missing_data_leave_no_folder_behind(tmp_path):
    answer = call("run", "mnist-split", "-m", "sgd", "--out", tmp_path / "runs", "--data", tmp_path / "none")
    assert answer.exit_code == 1
    assert "mnist is not in" in " ".join(answer.stderr.split())
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("option", ["options.root=/tmp", "options.name=x", "arguments.seed=3", "arguments.view=1"])
def test_an_option_that_is_an_argument_of_ours_is_refused_in_words(tmp_path, option):
    answer = call("run", "digits-split", "-m", "sgd", "--out", tmp_path / "runs", "-o", option, *QUICK)
    assert answer.exit_code in (1, 2)
    said = " ".join(answer.stderr.split())
    assert option.partition("=")[0].partition(".")[2] in said
    assert "argument '" not in said
    assert "()" not in said
    assert not (tmp_path / "runs").exists()


def test_a_damaged_run_is_run_again_with_a_note(tmp_path):
    words = ("run", "digits-permuted", "-m", "sgd", "--out", tmp_path, "--name", "mine", *QUICK)
    call(*words)
    (tmp_path / "mine" / "model.safetensors").write_bytes(b"\0")
    answer = call(*words)
    assert answer.exit_code == 0, answer.output
    assert "model.safetensors is damaged" in " ".join(answer.stdout.split())
    assert "already finished" not in answer.stdout
    assert Run.read(tmp_path / "mine").finished


def test_a_config_nested_without_end_is_refused(tmp_path):
    (tmp_path / "deep.toml").write_text("benchmark = " + "[" * 100_000)
    answer = call("run", "--config", tmp_path / "deep.toml", "--out", tmp_path / "runs")
    assert answer.exit_code == 2
    assert "nested too deeply" in " ".join(answer.stderr.split())
    answer = call("run", "digits-split", "--out", tmp_path / "runs", "-o", "batch=" + "[" * 100_000)
    assert answer.exit_code == 2
    assert len(answer.stderr) < 1000
