"""``drcl list``: everything there is, with its options."""

from __future__ import annotations

import pytest
from tests.lab.cli.stage import call

import drcl
import drcl.lab.common.fields
import drcl.lab.runs.read
from drcl.lab import benchmarks, methods
from drcl.lab.networks import names as network_names


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


def test_list_data_of_one_name_is_one_row():
    shown = call("list", "data", "digits").stdout
    assert "digits" in shown
    assert "mnist" not in shown
    assert shown == call("data", "list", "digits").stdout
    answer = call("list", "data", "mnst")
    assert answer.exit_code == 2
    assert "did you mean 'mnist'?" in " ".join(answer.stderr.split())


def test_list_methods_shows_every_hyperparameter_with_default_and_help():
    shown = " ".join(call("list", "methods", "ewc").stdout.split())
    for row in drcl.lab.common.fields.table(methods.get("ewc")):
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


@pytest.mark.usefixtures("unregistered")
def test_list_shows_a_benchmark_of_ones_own_by_its_file(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(
        '[my-digits]\nabout = "my digits"\ndata = "digits"\nbuilder = "permuted-inputs"\nscenario = "domain"\n'
        'tasks = 3\nclasses = 10\nmodel = { kind = "mlp", hidden = [7] }\nepochs = 1\nbatch = 8\nlr = 0.1\n'
        "momentum = 0.0\n"
    )
    answer = call("list", "benchmarks", str(file))
    assert answer.exit_code == 0, answer.stderr
    assert "my-digits" in answer.stdout
    assert "hidden=[7]" in answer.stdout
    answer = call("list", "benchmarks", str(tmp_path / "other.toml"))
    assert answer.exit_code == 2
    assert "other.toml" in answer.stderr
