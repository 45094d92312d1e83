"""A separate budget for the first task, a separate rate for later ones, and what they do not affect."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from tests.lab.methods.test_methods import PLAIN_SGD_ONLY, make
from tests.lab.training.test_learner import learner, stream

from drcl.lab import methods
from drcl.lab.methods.base import Setting
from drcl.lab.runs import nested
from drcl.lab.training import step as steps
from drcl.lab.training.budget import Plan, setting_of
from drcl.lab.training.events import Watcher
from drcl.lab.training.settings import Training

PLAN = Plan(epochs=2, batch=8, lr=0.05, momentum=0.9)
OWN_RATE = {  # Adam's, and two of their own
    **{"wsn": 1e-3, "ucl": 1e-3, "evcl": 1e-3, "tag": 2.5e-4, "mesu": 1.0, "ibpcl": 0.01},
    "ban": 0.003,  # 0.85 times that of the task before
}
TRAINED = {"joint": {2}, "sb-mcl": {0}}  # all data at once; an encoder that is frozen after the first task
NO_MOMENTUM = {"upgd", "tag"}  # plain descent, whatever the run has


def rate_of(name: str, task: int, run: float) -> float:
    return OWN_RATE.get(name, run) * (0.85**task if name == "ban" else 1)


@pytest.fixture
def optimizers(monkeypatch):
    """The rate and the momentum at each step, by task; None if an optimizer has no momentum."""
    seen: dict[int, set[tuple[float, float | None]]] = {}
    original = steps.Step.__call__

    def look(self, batch):
        group = self.optimizer.param_groups[0]
        seen.setdefault(self.method.at.task, set()).add((group["lr"], group.get("momentum")))
        original(self, batch)

    monkeypatch.setattr(steps.Step, "__call__", look)
    return seen


@pytest.mark.parametrize("name", methods.names())
def test_rates_of_the_first_and_of_later_tasks_touch_the_runs_optimizer_only(name, optimizers):
    given = {"first_lr": 0.03, "later_lr": 0.01, "first_momentum": 0.5}
    learner(make(name), stream(tasks=3), Plan(epochs=1, batch=24, lr=0.05, momentum=0.9), **given).run()
    for task, found in optimizers.items():
        ((rate, momentum),) = found
        first = task == 0 or name == "joint"  # which is trained once
        assert rate == rate_of(name, task, 0.03 if first else 0.01)
        if momentum is not None:
            assert momentum == (0.0 if name in NO_MOMENTUM else 0.5 if first else 0.9)
    assert set(optimizers) == TRAINED.get(name, {0, 1, 2})


@pytest.mark.parametrize("name", sorted(set(methods.names()) - PLAIN_SGD_ONLY - {"joint"}))
def test_with_adam_too(name, optimizers):
    plan = Plan(epochs=1, batch=24, lr=0.005)
    learner(make(name), stream(tasks=2), plan, optimizer="adam", first_lr=0.003, later_lr=0.001).run()
    for task, found in optimizers.items():
        assert {rate for rate, _ in found} == {rate_of(name, task, 0.001 if task else 0.003)}


@pytest.mark.parametrize("name", ["sgd", "ewc", "drcl", "hat", "er", "became"])
def test_the_first_task_is_that_of_a_run_with_these_settings(name):
    """And what comes after it has the benchmark's own again."""
    given = {"first_epochs": 3, "first_lr": 0.03, "first_momentum": 0.5, "first_epoch": False}
    one = learner(make(name), stream(tasks=2)[:1], PLAN, **given)
    like = learner(make(name), stream(tasks=2)[:1], Plan(epochs=3, batch=8, lr=0.03, momentum=0.5), first_epoch=False)
    for made in (one, like):
        made.run()
    assert all(torch.equal(one.model.state_dict()[k], v) for k, v in like.model.state_dict().items())
    assert one.matrix == like.matrix

    ends = []

    class Ends(Watcher):
        def row(self, task, accuracies):
            ends.append(made.cost.gradient_evaluations)

    made = learner(make("sgd"), stream(tasks=3), PLAN, watcher=Ends(), **given)
    made.run()
    assert ends == [3 * 6, 3 * 6 + 2 * 6, 3 * 6 + 4 * 6]


def test_epochs_of_the_first_task_replace_steps_too():
    made = learner(plan=Plan(epochs=None, steps=4, batch=8, lr=0.05), first_epochs=2)
    made.run()
    assert made.cost.gradient_evaluations == 2 * 6 + 4


def test_a_momentum_given_for_the_first_task_counts_for_more_than_the_methods_own(optimizers):
    learner(make("drcl", momentum=0.0), stream(tasks=2), PLAN, first_momentum=0.8).run()
    assert {momentum for _, momentum in optimizers[0]} == {0.8}
    assert {momentum for _, momentum in optimizers[1]} == {0.0}


@pytest.mark.parametrize("splitting", ["douglas-rachford", "implicit"])
def test_a_splitting_without_momentum_has_none_after_the_first_task(splitting, optimizers):
    own = {"momentum": 0.0} if splitting != "implicit" else {"inner_steps": 3}
    learner(make("drcl", splitting=splitting, **own), stream(tasks=2), PLAN, first_momentum=0.8).run()
    assert {momentum for _, momentum in optimizers[0]} == {0.8}
    assert {momentum for _, momentum in optimizers[1]} == {0.0}


@pytest.mark.parametrize("name", ["sgd", "drcl"])
def test_resumed_it_goes_on_with_the_same(name):
    states: list[Any] = []

    class Keep(Watcher):
        def save(self, state):
            states.append(nested.pack(state()))

    given = {"first_epochs": 3, "first_lr": 0.03, "first_momentum": 0.5, "later_lr": 0.01}
    plan = Plan(epochs=2, batch=8, lr=0.05, momentum=0.9, schedule="cosine")
    whole = learner(make(name), stream(tasks=2), plan, watcher=Keep(), checkpoint_every=4, **given)
    whole.run()
    assert len(states) > 5
    for state in states[:-1]:
        again = learner(make(name), stream(tasks=2), plan, **given)
        again.load_state_dict(nested.unpack(*state))
        again.run()
        assert all(torch.equal(again.model.state_dict()[k], v) for k, v in whole.model.state_dict().items())


def test_a_strength_that_must_diverge_is_told_by_the_rate_of_later_tasks():
    """EWC's penalty acts from the second task on: the rate of the first has no part in it."""
    with pytest.warns(UserWarning, match=r"lr \* lam \* max F"):
        learner(make("ewc", lam=1e4), stream(tasks=1), PLAN, first_lr=1e-3, later_lr=10.0).run()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learner(make("ewc", lam=1e4), stream(tasks=1), PLAN, later_lr=1e-12).run()


def test_a_setting_is_left_as_it_is_where_nothing_is_given():
    usual = Setting("task", 2, (2, 2), (1, 4, 4), 0, 0.1, 0.9, 8)
    assert setting_of(usual, Training(), first=True) == setting_of(usual, Training(), first=False) == usual


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"first_epochs": 0}, "first_epochs=0: give a whole number of at least 1"),
        ({"first_lr": 0.0}, "first_lr=0.0: give a number above 0"),
        ({"first_momentum": 1.0}, "first_momentum=1.0: give 0 <= first_momentum < 1"),
        ({"first_momentum": -0.1}, "first_momentum=-0.1"),
        ({"first_momentum": 0.9, "optimizer": "adam"}, "first_momentum=0.9: optimizer=adam has no momentum"),
    ],
)
def test_bad_values_are_named(wrong, said):
    with pytest.raises(ValueError, match=f"training: {said}"):
        Training(**wrong)


def test_an_online_stream_has_no_epochs():
    on = stream()
    on.online = True
    with pytest.raises(ValueError, match="first_epochs=2: an online stream is one pass"):
        learner(on=on, first_epochs=2)
