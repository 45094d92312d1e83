"""The demonstration, made smaller, and that its words are true of its numbers."""

from __future__ import annotations

import tomllib
from importlib import resources

import pytest
from typer.testing import CliRunner

from drcl.lab.cli import demo
from drcl.lab.cli.app import app
from drcl.lab.data.registry import entry
from drcl.lab.runs.read import find
from drcl.lab.sweeps import sweep


@pytest.fixture
def small(monkeypatch):
    """The same plan with less of everything."""
    real = sweep.plan

    def plan(table):
        return real({**table, "seeds": [0], "options": {"epochs": 1, "tasks": 3, "limit_per_class": 20}})

    monkeypatch.setattr(demo.sweep, "plan", plan)


def test_it_needs_nothing_but_what_is_installed():
    chosen = demo.Demo.read(demo.Path("demo"))
    assert {config.method for config in chosen.plan} == {"sgd", "ewc", "drcl", "drcl-kronecker"}
    for config in chosen.plan:
        assert entry(config.make_benchmark().data).embedded


def test_every_method_trains_under_the_same_conditions():
    plan = demo.Demo.read(demo.Path("demo")).plan
    common = [(c.seed, c.benchmark_options, c.training) for c in plan if c.method == "sgd"]
    for method in ("ewc", "drcl", "drcl-kronecker"):
        assert [(c.seed, c.benchmark_options, c.training) for c in plan if c.method == method] == common
    table = tomllib.loads(resources.files("drcl.lab.cli").joinpath("demo.toml").read_text())
    assert "grid" not in table


def test_the_demonstration_from_first_word_to_page(small, tmp_path):
    out = tmp_path / "demo"
    answer = CliRunner().invoke(app, ["demo", "--out", str(out)])
    assert answer.exit_code == 0, answer.output
    runs = find([out / "runs"])
    assert sorted(run.method for run in runs) == ["drcl", "drcl-kronecker", "ewc", "sgd"]
    assert all(run.finished for run in runs)
    for run in runs:
        assert f"{100 * run.value('average_accuracy'):.1f}" in answer.stdout
    assert "3 tasks" in answer.stdout
    assert str(out / "report.html") in "".join(answer.stdout.split())  # a long path is folded
    page = (out / "report.html").read_text(encoding="utf-8")
    assert page.count("<svg") >= 5
    before = {run.path: (run.path / "result.json").stat().st_mtime_ns for run in runs}

    second = CliRunner().invoke(app, ["demo", "--out", str(out)])
    assert second.exit_code == 0
    assert "These results already existed" in second.stdout
    assert {path: (path / "result.json").stat().st_mtime_ns for path in before} == before

    (out / "mine.txt").write_text("keep me")
    third = CliRunner().invoke(app, ["demo", "--out", str(out), "--again"])
    assert third.exit_code == 0
    assert all((path / "result.json").stat().st_mtime_ns > then for path, then in before.items())
    assert (out / "mine.txt").read_text() == "keep me"
