"""Steps that are looked at: what is recorded is what they did, and looking leaves the run alone."""

from __future__ import annotations

import math

import pytest
import torch
from tests.lab.training.toys import learner, stream, weights

from drcl.lab import methods
from drcl.lab.training.budget import Plan
from drcl.lab.training.events import Watcher
from drcl.lab.training.rows import IterationRow, StepRow, UpdateRow
from drcl.lab.training.samples import PICKS, apart, picked

PLAN = Plan(epochs=4, batch=8, lr=0.1, momentum=0.0)


class Keep(Watcher):
    def __init__(self):
        self.rows = []

    def records(self, rows):
        self.rows += rows

    def of(self, kind):
        return [row for row in self.rows if isinstance(row, kind)]


@pytest.mark.parametrize(("steps", "tasks", "most"), [(1, 5, 1), (24, 5, 1), (852, 9, 20), (2500, 400, 5), (9, 999, 1)])
def test_some_steps_of_a_task_are_chosen(steps, tasks, most):
    every = apart(steps, tasks)
    assert 1 <= len([step for step in range(steps) if step % every == every // 2]) <= most


def test_a_plain_method_lets_everything_through():
    keep = Keep()
    made = learner(plan=PLAN, watcher=keep)
    made.run()
    rows = keep.of(StepRow)
    assert {row.task for row in rows} == {0, 1}
    for row in rows:
        assert row.step_norm == row.proposed == row.passed > 0
        assert math.isnan(row.residual)
    assert keep.of(IterationRow) == []
    updates = keep.of(UpdateRow)
    assert all(row.proposed == row.passed for row in updates)


def test_the_length_of_a_step_is_measured_on_the_trunk():
    """The same as of every step, on the ones that were chosen."""
    keep = Keep()
    made = learner(plan=PLAN, watcher=keep, step_norms=True)
    seen = []
    original = type(made.method).step

    def step(self, optimizer, closure):
        before = {n: p.detach().clone() for n, p in self.model.groups()["trunk"].items()}
        loss = original(self, optimizer, closure)
        after = self.model.groups()["trunk"]
        seen.append(math.sqrt(sum(float((after[n] - q).detach().double().square().sum()) for n, q in before.items())))
        return loss

    made.method.step = step.__get__(made.method)
    made.run()
    per_task = len(seen) // 2
    for row in keep.of(StepRow):
        assert row.step_norm == pytest.approx(seen[row.task * per_task + row.step], rel=1e-9)
    assert made.step_norms[1] == pytest.approx(sum(seen[per_task:]) / per_task)


@pytest.mark.parametrize(
    "options",
    [
        {"strength": math.inf, "damping": 1.0},
        {"splitting": "douglas-rachford", "iterations": 3},
        {"plasticity_steps": 5},
        {"splitting": "implicit", "inner_steps": 3},
    ],
    ids=str,
)
def test_drcl_tells_what_was_proposed_and_what_got_through(options):
    keep = Keep()
    on = stream(tasks=2)
    made = learner(methods.get("drcl")(samples=16, **options), on=on, plan=PLAN, watcher=keep)
    made.run()
    first, *later = keep.of(StepRow)
    assert first.proposed == first.passed  # nothing is protected in the first task
    assert later
    for row in later:
        assert row.proposed > 0
        assert row.iterations == options.get("iterations", 1)
        assert row.residual >= 0
        if options.get("strength") == math.inf:
            assert (row.passed, row.still) == (0.0, 1.0)
    assert [row.iteration for row in keep.of(IterationRow)] == [1, 2, 3][: options.get("iterations", 0)]
    second = [row for row in keep.of(UpdateRow) if row.task == 1]
    trunk = sum(p.numel() for p in made.model.groups()["trunk"].values())
    assert len(second) == PICKS
    assert any(row.proposed for row in second)
    if options.get("strength") == math.inf:
        assert not any(row.passed for row in second)
    assert trunk >= PICKS or not any(row.proposed for row in second[trunk:])


def test_nobody_looking_leaves_the_same_weights(monkeypatch):
    on = stream(tasks=2)
    made = learner(methods.get("drcl")(samples=16), on=on, plan=PLAN, model={"dropout": 0.5})
    made.run()
    monkeypatch.setattr("drcl.lab.training.samples.Look.wanted", lambda self: False)
    monkeypatch.setattr("drcl.lab.training.learner.loss_is_due", lambda at: False)
    monkeypatch.setattr("drcl.lab.training.learner.Learner._losses", lambda self: None)
    blind = learner(methods.get("drcl")(samples=16), on=on, plan=PLAN, model={"dropout": 0.5})
    blind.run()
    for name, value in weights(blind.model).items():
        assert torch.equal(value, weights(made.model)[name]), name
    assert blind.matrix == made.matrix or all(math.isnan(v) for v in blind.matrix[0][1:])


def test_picks_are_spread_over_the_trunk():
    trunk = [torch.zeros(300, 3), torch.zeros(0), torch.zeros(100)]
    found = picked(trunk)
    assert sum(len(at) for _, at in found) == PICKS
    assert [p is q for (p, _), q in zip(found, (trunk[0], trunk[2]))] == [True, True]
    assert picked([]) == []
    assert [at.tolist() for _, at in picked([torch.zeros(2)])] == [[0, 1]]
