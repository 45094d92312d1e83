"""Projection, rotation, mask, distillation and Bayesian methods in the real loop: cut inside any stage they end in the
same bits, and the cost of what they keep is told."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.lab.methods.loop import CNN, toy_stream

from drcl.lab import methods, networks
from drcl.lab.training.budget import Plan
from drcl.lab.training.events import Watcher
from drcl.lab.training.learner import Learner
from drcl.lab.training.settings import Training

OPTIONS: dict[str, dict[str, Any]] = {
    "gpm": {"threshold": 0.9, "samples": 10},
    "sgp": {"threshold": 0.9, "samples": 10},
    "became": {"threshold": 0.9, "samples": 10, "fisher_samples": 6, "host": "sgp"},
    "trgp": {"threshold": 0.9, "samples": 10, "epsilon": 0.1},
    "cuber": {"threshold": 0.9, "samples": 10, "epsilon": 0.1},
    "owm": {"samples": 10},
    "ncl": {"samples": 10},
    "r-ewc": {"samples": 10},
    "kf-laplace": {"samples": 10},
    "hat": {},
    "wsn": {"density": 0.4},
    "packnet": {"prune": 0.6, "retrain": 1.0},
    "lwf": {},
    "der++": {"memory": 10},
    "ucl": {},
    "mesu": {"samples": 2, "test_samples": 2},
    "evcl": {"fisher_samples": 6, "test_samples": 2},
    "ibpcl": {"test_samples": 2},
    "ban": {"test_samples": 2},
    "sb-mcl": {"encoder": "tuned"},
}


class Keeper(Watcher):
    """Keeps the state at every moment at which it may be saved."""

    def __init__(self) -> None:
        self.states: list[dict[str, Any]] = []

    def save(self, state: Callable[[], dict[str, Any]]) -> None:
        self.states.append(copy.deepcopy(state()))


def learner(name: str, watcher: Watcher | None = None) -> Learner:
    tasks = toy_stream(tasks=3, per_class=6)
    model = networks.build(CNN | {"dropout": 0.2}, tasks, 0)
    plan = Plan(epochs=1, batch=4, lr=0.05, momentum=0.9, schedule="cosine")
    training = Training(checkpoint_every=2, first_epoch=False)
    return Learner(tasks, model, methods.get(name)(**OPTIONS[name]), plan, training, seed=1, watcher=watcher)


@pytest.mark.parametrize("name", OPTIONS)
def test_resumed_inside_the_last_task_it_ends_in_the_same_bits(name: str) -> None:
    keeper = Keeper()
    whole = learner(name, keeper)
    whole.run()
    inside = [s for s in keeper.states if s["inside"] and s["at"]["task"] == 2]
    assert [s["at"]["stage"] for s in inside] == ([0, 1] if name in ("became", "packnet", "ibpcl", "ban") else [0])
    for state in inside:
        again = learner(name)
        again.load_state_dict(state)
        again.run()
        ends, wanted = again.model.state_dict(), whole.model.state_dict()
        assert ends.keys() == wanted.keys()
        assert all(torch.equal(ends[n], wanted[n]) for n in ends)
        assert again.matrix[2] == whole.matrix[2]
    assert all(0 <= value <= 1 for value in whole.matrix[2])
    assert whole.cost.state_bytes >= whole.method.state_bytes() > 0
