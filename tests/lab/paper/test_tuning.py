"""Strengths from trials, for the rows of an experiment that have one."""

import math
from dataclasses import replace
from pathlib import Path

from drcl.lab.paper.contents import paper
from drcl.lab.paper.plan import plan
from drcl.lab.paper.tuning import SEED, TASKS, Search, searches, tune
from drcl.lab.sweeps.sweep import Update
from drcl.lab.sweeps.tune import Tuning
from drcl.lab.sweeps.workers import here as run_here

PAPER = paper()


def here(monkeypatch):
    monkeypatch.setattr("drcl.lab.paper.tuning.missing_data", lambda name, root=None: [])


def test_the_headlines_rows_have_four_trials_each(monkeypatch, tmp_path):
    here(monkeypatch)
    found = list(searches(PAPER, ["headline"], "small", tmp_path, trials=4))
    assert [search.row for search in found] == [
        *("ewc", "ewc-slow", "sgp", "sgp-slow", "upgd", "upgd-slow", "drcl-tuned", "drcl-fast", "drcl-weights")
    ]
    for search in found:
        assert (search.tuning.budget, search.tuning.tasks, search.tuning.seed) == (4, TASKS, SEED)
        assert search.tuning.out == tmp_path / "tuning" / "headline" / "cifar100-10" / search.row
    ewc = found[0].tuning
    config = ewc.config("ewc", 100.0)
    assert config.method_options["lam"] == 100.0
    made = config.make_benchmark()
    assert (made.epochs, made.schedule, config.stream_options()["tasks"]) == (12, "constant", 4)


def test_not_for_a_smoke_run_nor_where_it_is_not_asked_for(monkeypatch, tmp_path):
    here(monkeypatch)
    assert not list(searches(PAPER, ["headline"], "smoke", tmp_path))
    assert not list(searches(PAPER, ["table1"], "small", tmp_path))
    assert not list(searches(PAPER, ["headline"], "small", tmp_path, trials=0))
    assert list(searches(PAPER, ["plas-stab"], "small", tmp_path, trials=3))


def test_a_strength_that_trials_found_is_not_tuned_again_unless_asked_for(monkeypatch, tmp_path):
    here(monkeypatch)
    known = replace(PAPER.experiments["headline"], strengths={"small": {"ewc": 7.0, "drcl-tuned": 0.5}})
    told = replace(PAPER, experiments={**PAPER.experiments, "headline": known})
    rows = [s.row for s in searches(told, ["headline"], "small", tmp_path)]
    assert rows == ["ewc-slow", "sgp", "sgp-slow", "upgd", "upgd-slow", "drcl-fast", "drcl-weights"]
    assert "ewc" in [s.row for s in searches(told, ["headline"], "paper", tmp_path)]  # found at another budget
    assert "ewc" in [s.row for s in searches(told, ["headline"], "small", tmp_path, trials=3)]
    planned = plan(told, ["headline"], "small", skip=False).runs
    values = {run.row: run.config.method_options for run in planned}
    assert values["ewc"]["lam"] == 7.0
    assert values["drcl-tuned"]["strength"] == 0.5
    assert values["drcl"]["strength"] == 10.0


def test_a_strength_that_is_given_is_not_tuned(monkeypatch, tmp_path):
    here(monkeypatch)
    rows = [s.row for s in searches(PAPER, ["headline"], "paper", tmp_path, given={"ewc.lam": 3})]
    assert "ewc" not in rows
    assert "ewc-slow" in rows
    for some in (["ewc"], ["ewc", "ewc-slow"]):
        assert not list(searches(PAPER, ["headline"], "paper", tmp_path, given={"lam": 3}, rows=some))
    assert [s.row for s in searches(PAPER, ["headline"], "paper", tmp_path, rows=["sgp"])] == ["sgp"]


def test_data_that_are_not_there_are_not_tuned_on(tmp_path):
    assert not list(searches(PAPER, ["headline"], "small", tmp_path, root=tmp_path))


def test_the_best_trial_is_chosen(tmp_path):
    """Two tasks of digits: the best score in the file of trials wins, and of equals the one nearest to the middle."""
    options = {"epochs": 1, "limit_per_class": 12, "samples": 16}
    tuning = Tuning("digits-split", ["ewc"], tmp_path, 2, 3, 0, 0.1, 10.0, options)
    told: list[Update] = []
    chosen = tune([Search("ewc", "cifar100-10", "lam", tuning)], _here, lambda search, jobs: told.append)
    lines = [line.split(",") for line in (Path(tmp_path) / "trials.csv").read_text(encoding="utf-8").splitlines()[1:]]
    best = max(lines, key=lambda cells: (float(cells[3]), -abs(math.log10(float(cells[2]))), float(cells[2])))
    assert chosen == {("cifar100-10", "ewc"): {"method.lam": float(best[2])}}
    assert {update.kind for update in told} >= {"started", "done"}


def _here(waiting, tell):
    run_here(waiting, tell)
