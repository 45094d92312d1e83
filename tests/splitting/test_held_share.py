"""stable=0.8: the share of weights left exactly in place, on several networks, optimizers and lengths of task."""

import math

import pytest
import torch
from tests.tasks import fit, mlp, task
from torch import nn
from torch.nn.functional import cross_entropy

import drcl
from drcl import DRCL, Anchor, Fisher


def clusters(seed, count=1000, features=32, classes=5):
    rng = torch.Generator().manual_seed(seed)
    centres, y = torch.randn(classes, features, generator=rng), torch.randint(classes, (count,), generator=rng)
    return centres[y] * 1.2 + torch.randn(count, features, generator=rng), y


def network(kind):
    torch.manual_seed(0)
    if kind == "mlp":
        return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5))
    if kind == "wide":  # more weights than are watched
        return nn.Sequential(nn.Linear(32, 600), nn.ReLU(), nn.Linear(600, 40), nn.ReLU(), nn.Linear(40, 5))
    features = [nn.Unflatten(1, (2, 4, 4)), nn.Conv2d(2, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1)]
    return nn.Sequential(*features, nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(128, 5))


OPTIMIZERS = {
    "sgd": lambda p, q: DRCL(p, lr=0.02, stable=q, splitting="douglas-rachford"),
    "momentum": lambda p, q: DRCL(p, lr=0.02, momentum=0.9, stable=q, splitting="forward-backward"),
    "elastic": lambda p, q: DRCL(p, lr=0.05, stable=q, prox="elastic", splitting="forward-backward"),
    "adamw": lambda p, q: DRCL.around(torch.optim.AdamW(p, lr=2e-3), stable=q, splitting="douglas-rachford"),
    "proposals": lambda p, q: DRCL(p, lr=0.05, stable=q, splitting="forward-backward", plasticity_steps=5),
}


@pytest.mark.parametrize(
    ("kind", "steps", "tasks", "shares"),
    [
        ("mlp", 60, 3, (0.5, 0.95)),
        ("mlp", 20, 2, (0.8,)),
        ("wide", 60, 2, (0.8,)),
        ("conv", 60, 2, (0.5, 0.8, 0.95)),
        ("conv", 200, 2, (0.8,)),
    ],
)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_share_at_the_end_of_each_task(name, kind, steps, tasks, shares):
    for share in shares:
        model = network(kind)
        opt = OPTIMIZERS[name](model.named_parameters(), share)
        rng = torch.Generator().manual_seed(0)
        for number in range(tasks):
            x, y = clusters(number)
            before = opt.anchor
            for _ in range(steps if number else 20):
                rows = torch.randint(len(x), (16,), generator=rng)
                opt.zero_grad()
                cross_entropy(model(x[rows]), y[rows]).backward()
                opt.step()
            if before is not None:
                with opt.deployed():
                    assert drcl.drift(model, before).total.unmoved == pytest.approx(share, abs=0.05), (share, number)
                (strength,) = opt.strengths
                assert 0 < strength < math.inf
            if number + 1 < tasks:
                opt.consolidate(model, [(x, y)], Fisher(samples=50))


def test_the_strength_is_the_quantile_by_hand():
    """Four weights at zero, gradients 1 2 3 4, importance 1, reflected: |r| / gamma = 2 4 6 8. Half of them: 4."""
    model = nn.Linear(4, 1, bias=False)
    nn.init.zeros_(model.weight)
    opt = DRCL(model.named_parameters(), lr=0.25, stable=0.5, splitting="douglas-rachford")
    opt.protect(model, Anchor({"weight": torch.zeros(1, 4)}, {"weight": torch.ones(1, 4)}))
    assert math.isnan(opt.strengths[0])
    model.weight.grad = torch.tensor([[1.0, -2.0, 3.0, -4.0]])
    opt.step()
    assert opt.strengths == [pytest.approx(4.0, rel=1e-5)]
    opt.eval()
    assert model.weight[0, 0] == model.weight[0, 1] == 0
    torch.testing.assert_close(model.weight.detach()[0, 2:], torch.tensor([-0.5, 1.0]), rtol=1e-4, atol=0)


def test_weights_without_a_gradient_count_as_stable():
    """Half of the weights get no gradient: for 0.8 overall, 0.6 of the others have to stay."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"used": nn.Linear(10, 10, bias=False), "idle": nn.Linear(10, 10, bias=False)})
    opt = DRCL(model.named_parameters(), lr=0.1, stable=0.8, splitting="douglas-rachford")
    ones = {n: torch.ones(10, 10) for n, _ in model.named_parameters()}
    opt.protect(model, Anchor({n: p.detach().clone() for n, p in model.named_parameters()}, ones))
    anchor = opt.anchor
    model["used"].weight.grad = torch.randn(10, 10)
    opt.step()
    opt.eval()
    rows = {r.layer: r.unmoved for r in drcl.drift(model, anchor)}
    assert rows == {"used": 0.6, "idle": 1.0}


def test_a_warm_up_from_zero_leaves_no_trace():
    """With lr 0 nothing is known about the strength, and the old value must stay."""
    model = mlp()
    opt = DRCL(model.named_parameters(), lr=0.1, stable=0.8, splitting="douglas-rachford")
    opt.consolidate(model, task(0))
    anchor = opt.anchor
    for lr in (0.0, 0.0, 0.05, 0.1):
        opt.param_groups[0]["lr"] = lr
        fit(model, opt, task(1))
    with opt.deployed():
        assert drcl.drift(model, anchor).total.unmoved == pytest.approx(0.8, abs=0.05)
