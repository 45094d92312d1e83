"""Observers see what a step did, computed by hand, and change nothing."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from drcl import DRCL, Kronecker
from drcl.splitting.observation import Observer


def soft(r: torch.Tensor, a: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    d = r - a
    return torch.where(d.abs() > t, r - torch.copysign(t, d), a)


def problem(**options) -> tuple[nn.Linear, DRCL, list]:
    torch.manual_seed(0)
    model = nn.Linear(6, 3).double()
    batches = [(torch.randn(8, 6).double(), torch.randint(3, (8,))) for _ in range(4)]
    opt = DRCL(model.named_parameters(), **{"lr": 0.1, "strength": 0.1, **options})
    steps(model, opt, batches)
    opt.consolidate(model, batches)
    return model, opt, batches


def steps(model: nn.Module, opt: DRCL, batches: list) -> None:
    for x, y in batches:

        def closure(x=x, y=y):
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        opt.step(closure)


@pytest.mark.parametrize("splitting", ["forward-backward", "douglas-rachford"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_one_step_by_hand(splitting, momentum):
    strength = 0.1 * (1 - momentum)
    model, opt, batches = problem(splitting=splitting, momentum=momentum, strength=strength)
    observer = opt.progress.observer = Observer({model.weight: torch.tensor([0, 7])})
    steps(model, opt, batches[:1])
    assert observer.take() == []  # not armed
    y = [p.detach().clone() for p in model.parameters()]
    z = [opt.state[p].get("z", p).detach().clone() for p in model.parameters()]
    buffers = [opt.state[p].get("momentum_buffer", torch.zeros(1)).clone() for p in model.parameters()]
    loss = F.cross_entropy(model(batches[1][0]), batches[1][1])
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    observer.armed = True
    steps(model, opt, batches[1:2])
    (found,) = observer.take()
    s = [0.1 * (momentum * b + g) for b, g in zip(buffers, gradients)]
    reach = 2 if splitting == "douglas-rachford" else 1
    settled = [
        soft(w - reach * d, opt.state[p]["anchor"], 0.1 / (1 - momentum) * strength * opt.state[p]["importance"])
        for w, d, p in zip(y, s, model.parameters())
    ]
    after = [v + d if reach == 2 else v for v, d in zip(settled, s)]

    def norm(pairs):
        return sum(float((a - b).square().sum()) for a, b in pairs) ** 0.5

    assert found.weights == 21
    assert found.proposed == pytest.approx(sum(float(d.square().sum()) for d in s) ** 0.5, rel=1e-9)
    assert found.passed == pytest.approx(norm(zip(settled, z)), rel=1e-6)
    assert found.residual == pytest.approx(norm(zip(after, y)), rel=1e-6)
    assert found.still == sum(int((a == b).sum()) for a, b in zip(settled, z))
    torch.testing.assert_close(found.picked_proposed[model.weight], -s[0].reshape(-1)[[0, 7]])
    torch.testing.assert_close(found.picked_passed[model.weight], (settled[0] - z[0]).reshape(-1)[[0, 7]])


OPTIONS = [
    {"splitting": "douglas-rachford", "iterations": 3},
    {"splitting": "implicit", "inner_steps": 4},
    {"plasticity_steps": 2, "momentum": 0.9},
    {"stable": 0.7},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_looking_changes_nothing_and_counts_iterations(options):
    one, opt, batches = problem(**options)
    two, other, _ = problem(**options)
    other.progress.observer = Observer()
    other.progress.observer.armed = True
    steps(one, opt, batches)
    steps(two, other, batches)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters()))
    seen = other.progress.observer.take()
    assert len(seen) == {"iterations": 12, "plasticity_steps": 2}.get(next(k for k in options if k != "splitting"), 4)
    assert all(each.weights == 21 and each.proposed > 0 for each in seen)
    assert all(each.residual >= 0 and each.still <= 21 for each in seen)


def test_a_strength_that_freezes_lets_nothing_through():
    model, opt, batches = problem(strength=float("inf"), damping=1.0)
    opt.progress.observer = Observer()
    opt.progress.observer.armed = True
    steps(model, opt, batches)
    for each in opt.progress.observer.take():
        assert each.proposed > 0
        assert (each.passed, each.still) == (0.0, 21)


def test_layers_along_directions_are_seen_from_where_the_proposal_began():
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    batches = [(torch.randn(8, 6), torch.randint(3, (8,))) for _ in range(4)]
    opt = DRCL(model.named_parameters(), lr=0.1, preset="directions", plasticity_steps=2)
    steps(model, opt, batches)
    opt.consolidate(model, batches, importance=Kronecker(samples=16))
    observer = opt.progress.observer = Observer({model.weight: torch.arange(18)})
    start = model.weight.detach().clone()
    bias = model.bias.detach().clone()
    plain = copy.deepcopy(model)
    for x, y in batches[:2]:
        plain.zero_grad()
        F.cross_entropy(plain(x), y).backward()
        with torch.no_grad():
            for p in plain.parameters():
                p -= 0.1 * p.grad
    observer.armed = True
    steps(model, opt, batches[:2])
    (found,) = observer.take()
    proposed = (plain.weight - start).detach().double()
    torch.testing.assert_close(found.picked_proposed[model.weight], proposed.reshape(-1), rtol=1e-4, atol=1e-6)
    total = float(proposed.square().sum() + (plain.bias - bias).detach().double().square().sum()) ** 0.5
    assert found.proposed == pytest.approx(total, rel=1e-4)
    passed = (model.weight - start).detach().double()
    torch.testing.assert_close(found.picked_passed[model.weight], passed.reshape(-1), rtol=1e-5, atol=1e-8)


def test_two_groups_are_one_iteration():
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    groups = [{"params": [("weight", model.weight)]}, {"params": [("bias", model.bias)], "strength": 3.0}]
    opt = DRCL(groups, lr=0.1, strength=0.1)
    batches = [(torch.randn(8, 6), torch.randint(3, (8,))) for _ in range(3)]
    steps(model, opt, batches)
    opt.consolidate(model, batches)
    opt.progress.observer = Observer()
    opt.progress.observer.armed = True
    steps(model, opt, batches)
    assert [each.weights for each in opt.progress.observer.take()] == [21, 21, 21]


def test_the_observer_outlives_a_loaded_state():
    _, opt, _ = problem()
    observer = opt.progress.observer = Observer()
    opt.load_state_dict(opt.state_dict())
    assert opt.progress.observer is observer
