"""``drcl tune``: what it writes, and what it refuses."""

from __future__ import annotations

import csv
import tomllib

import pytest
from typer.testing import CliRunner

from drcl.lab.cli.app import app
from drcl.lab.runs.config import RunConfig
from drcl.lab.sweeps import sweep


def test_what_was_tried_and_what_was_chosen_are_written(tmp_path):
    out = tmp_path / "tuning"
    command = ["tune", "digits-permuted", "--methods", "ewc,l2", "--tasks", "2", "--budget", "3", "--out", str(out)]
    command += ["--range", "0.01:1", "-o", "epochs=1", "-o", "limit_per_class=20"]
    answer = CliRunner().invoke(app, command)
    assert answer.exit_code == 0, answer.output
    with (out / "trials.csv").open() as file:
        tried = list(csv.DictReader(file))
    assert [(row["method"], float(row["value"])) for row in tried] == [
        (method, value) for method in ("ewc", "l2") for value in (0.01, 0.1, 1.0)
    ]
    best = {}
    for method in ("ewc", "l2"):
        mine = [row for row in tried if row["method"] == method]
        near = {0.01: 0, 0.1: 2, 1.0: 1}  # of equal scores the middle, else the larger
        score = {float(row["value"]): float(row["validation_accuracy"]) for row in mine}
        best[method] = max(score, key=lambda value: (score[value], near[value]))
        at_an_end = f"{method}: lam = {best[method]:g} is the" in answer.stdout
        assert at_an_end == (best[method] != 0.1 and len(set(score.values())) > 1)
    tuned = tomllib.loads((out / "tuned.toml").read_text())
    assert {method: table["lam"] for method, table in tuned["method"].items()} == best
    planned = sweep.read(out / "tuned.toml")
    assert {config.method: config.method_options["lam"] for config in planned} == best
    assert all("tasks" not in config.benchmark_options and not config.training for config in planned)
    single = RunConfig.from_toml(out / "ewc.toml")
    assert single == next(config for config in planned if config.method == "ewc")
    assert tuned["options"] == {"epochs": 1, "limit_per_class": 20}
    # asked again, nothing is run again
    again = CliRunner().invoke(app, command)
    assert again.exit_code == 0
    assert again.stdout.count("there already") == 6


def test_a_range_the_method_does_not_allow_is_refused_with_what_it_allows(tmp_path):
    command = ["tune", "digits-split", "--methods", "si,gpm", "--range", "0.01:100", "--out", str(tmp_path)]
    answer = CliRunner().invoke(app, command)
    assert answer.exit_code == 2
    said = " ".join(answer.stderr.split())
    assert "gpm: threshold=100.0 must lie between 0.0 and 1.0" in said
    assert "the range 0.01:100 reaches there" in said
    assert not list(tmp_path.iterdir())


def test_a_method_without_strength_is_refused_in_a_sentence(tmp_path):
    answer = CliRunner().invoke(app, ["tune", "digits-permuted", "--methods", "sgd", "--out", str(tmp_path)])
    assert answer.exit_code == 2
    assert "'sgd' has no strength to tune" in answer.stderr


@pytest.mark.usefixtures("unregistered")
def test_a_plugin_is_named_in_what_is_written(tmp_path):
    plugin = tmp_path / "mine.py"
    plugin.write_text(
        "from drcl.lab import register\nfrom drcl.lab.methods.l2 import L2\n"
        "@register.method\nclass Mine(L2):\n    name = 'mine'\n"
    )
    out = tmp_path / "tuning"
    words = ["tune", "digits-permuted", "--methods", "mine", "--plugin", str(plugin), "--budget", "3", "--tasks", "1"]
    answer = CliRunner().invoke(app, [*words, "--out", str(out), "-o", "epochs=1", "-o", "limit_per_class=5"])
    assert answer.exit_code == 0, answer.output
    for file in ("tuned.toml", "mine.toml"):
        assert tomllib.loads((out / file).read_text())["plugins"] == [str(plugin)]
    assert RunConfig.from_toml(out / "mine.toml") == sweep.read(out / "tuned.toml")[0]


@pytest.mark.usefixtures("unregistered")
def test_a_benchmark_of_two_tasks_is_tuned_on_both(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(
        '[my-two]\nabout = "my digits"\ndata = "digits"\nbuilder = "permuted-inputs"\nscenario = "domain"\n'
        'tasks = 2\nclasses = 10\nmodel = { kind = "mlp", hidden = [8] }\nepochs = 1\nbatch = 32\nlr = 0.1\n'
        "momentum = 0.0\n"
    )
    command = ["tune", str(file), "-m", "l2", "--budget", "3", "--out", str(tmp_path / "t"), "-o", "limit_per_class=20"]
    answer = CliRunner().invoke(app, command)
    assert answer.exit_code == 0, answer.output
    assert "my-two, first 2 tasks" in answer.stdout
