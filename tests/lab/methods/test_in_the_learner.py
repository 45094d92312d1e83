"""Penalties, replay, gates and adaptive steps in the real loop: on larger networks, and with their cost counted."""

from __future__ import annotations

import math

import pytest
from tests.lab.methods.loop import toy_stream

from drcl.lab import methods, networks
from drcl.lab.training.budget import Plan
from drcl.lab.training.learner import Learner
from drcl.lab.training.settings import Training

NAMES = ("si", "mas", "er", "agem", "upgd", "spg", "tag", "star", "lwf", "der++")
SPECS = {
    "alexnet": {"kind": "alexnet", "width": 0.03},
    "alexnet-gpm": {"kind": "alexnet-gpm", "width": 0.03},
    "resnet": {"kind": "resnet18-reduced", "filters": 2, "norm": "per-task"},
}


def learner(name: str, network: str, scenario: str = "task", **training) -> Learner:
    stream = toy_stream(scenario, per_class=8, side=32)
    model = networks.build(SPECS.get(network, network), stream, seed=1)
    options = {k: v for k, v in {"samples": 4, "memory": 20, "lam": 0.01}.items() if k in fields(name)}
    plan = Plan(epochs=1, batch=8, lr=1e-3, momentum=0.9)
    return Learner(stream, model, methods.get(name)(**options), plan, Training(**training), seed=1)


def fields(name: str) -> set[str]:
    return set(methods.get(name).__dataclass_fields__)


@pytest.mark.parametrize("network", list(SPECS))
@pytest.mark.parametrize("name", NAMES)
def test_trains_larger_networks_and_counts_its_cost(name, network):
    run = learner(name, network)
    run.run()
    assert all(math.isfinite(v) for i, row in enumerate(run.matrix) for v in row[: i + 1])
    assert all(p.isfinite().all() for p in run.model.parameters())
    trunk = 4 * sum(p.numel() for p in run.model.groups()["trunk"].values())
    whole = 4 * sum(p.numel() for p in run.model.parameters())
    image = 32 * 32 * 4 + 16
    expected = {
        "si": 3 * trunk, "mas": 2 * trunk, "er": 20 * image, "star": 20 * image, "agem": 3 * 2 * 8 * image,
        "upgd": whole, "spg": trunk, "tag": 3 * 2 * trunk, "lwf": whole, "der++": 20 * (image + 2 * 4),
    }  # fmt: skip
    assert run.cost.state_bytes == pytest.approx(expected[name], rel=0.1)
    steps = 3 * 2  # three tasks of 16 images
    if name in ("er", "si", "upgd", "tag", "lwf", "der++"):
        assert run.cost.gradient_evaluations == steps
    else:
        assert run.cost.gradient_evaluations > steps


@pytest.mark.parametrize("name", NAMES)
def test_half_precision(name):
    run = learner(name, "alexnet", "domain", precision="bf16")
    run.run()
    assert all(p.isfinite().all() for p in run.model.parameters())
