"""The fixed point is the minimiser of loss + strength * penalty, for every optimizer; cvxpy computes it."""

from __future__ import annotations

import copy

import cvxpy
import numpy as np
import pytest
import torch
from torch import nn

from drcl import DRCL, Fisher, Kronecker
from drcl.splitting.step_size import rate

STRENGTH = 0.02


class Known:
    """An estimator that returns given values."""

    needs_data = False

    def __init__(self, values):
        self.values = values

    def estimate(self, model, batches, parameters, forward=None):
        return {name: self.values[name].clone() for name in parameters}

    def describe(self):
        return {"estimator": "known"}


def least_squares(seed=0, n=40, d=8):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d)) * np.linspace(0.4, 1.5, d)
    return x, x @ rng.normal(size=d) + 0.1 * rng.normal(size=n), rng.uniform(0.2, 3.0, d), rng.normal(size=d)


def minimiser(x, y, f, a, prox, strength=STRENGTH):
    w = cvxpy.Variable(len(a))
    f = f / f.mean()
    pull = cvxpy.sum(cvxpy.multiply(f, cvxpy.abs(w - a) if prox == "l1" else cvxpy.square(w - a) / 2))
    loss = cvxpy.sum_squares(x @ w - y) / (2 * len(y))
    cvxpy.Problem(cvxpy.Minimize(loss + strength * pull)).solve(solver=cvxpy.CLARABEL)
    return w.value


PROPOSALS = {
    "sgd": lambda ps: dict(lr=0.1),
    "momentum": lambda ps: dict(lr=0.02, momentum=0.9),
    "nesterov": lambda ps: dict(lr=0.02, momentum=0.8, nesterov=True),
    "dampening": lambda ps: dict(lr=0.1, momentum=0.9, dampening=0.5),
    "five steps": lambda ps: dict(lr=0.01, momentum=0.9, plasticity_steps=5),
    "wrapped sgd": lambda ps: torch.optim.SGD(ps, lr=0.02, momentum=0.9),
    "adam": lambda ps: torch.optim.Adam(ps, lr=1e-3),
    "adamw": lambda ps: torch.optim.AdamW(ps, lr=1e-3, weight_decay=0.0),
    "amsgrad": lambda ps: torch.optim.Adam(ps, lr=3e-3, amsgrad=True),
}


@pytest.mark.parametrize("prox", ["l1", "l2"])
@pytest.mark.parametrize("name", PROPOSALS)
def test_one_strength_means_the_same_under_every_proposal(name, prox):
    x, y, f, a = least_squares()
    model = nn.Linear(len(a), 1, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(torch.from_numpy(a))
    made = PROPOSALS[name](list(model.named_parameters()))
    common = dict(strength=STRENGTH, prox=prox, splitting="forward-backward", normalise="task")
    if isinstance(made, dict):
        opt = DRCL(model.named_parameters(), **common, **made)
    else:
        opt = DRCL.around(made, **common)
    opt.consolidate(model, None, importance=Known({"weight": torch.from_numpy(f)[None]}))
    inputs, targets = torch.from_numpy(x), torch.from_numpy(y)
    for _ in range(5000):
        opt.zero_grad()
        ((model(inputs)[:, 0] - targets) ** 2).mean().mul(0.5).backward()
        opt.step()
    opt.eval()
    found = model.weight.detach().numpy()[0]
    several = name == "five steps"  # the gradient is not the same at all of them
    adaptive = name in ("adam", "adamw", "amsgrad")  # its steps do not shrink
    best = minimiser(x, y, f, a, prox)
    np.testing.assert_allclose(found, best, atol=0.03 if several else 0.01 if adaptive else 1e-5)
    assert np.abs(best - minimiser(x, y, f, a, prox, strength=3 * STRENGTH)).max() > 0.05  # the judge can tell


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam"])
def test_it_does_along_directions_too(name):
    """L2 in the Kronecker eigenbasis, against the normal equations of the same problem."""
    torch.manual_seed(0)
    model = nn.Linear(6, 3).double()
    inputs = torch.randn(64, 6, dtype=torch.double) * torch.linspace(0.5, 2, 6)
    made = PROPOSALS[name](list(model.named_parameters()))
    common = dict(strength=0.05, prox="l2", splitting="forward-backward", normalise="task")
    opt = DRCL(model.named_parameters(), **common, **made) if isinstance(made, dict) else DRCL.around(made, **common)
    opt.consolidate(model, [(inputs, torch.zeros(64, dtype=torch.long))], importance=Kronecker(samples=64, rank=None))
    basis, anchor = opt.anchor.bases["weight"], copy.deepcopy(opt.anchor.weights)
    x = torch.cat([inputs, torch.ones(64, 1, dtype=torch.double)], 1)
    targets = torch.randn(64, 3, dtype=torch.double) + inputs[:, :3]
    old = torch.cat([anchor["weight"], anchor["bias"][:, None]], 1)
    # min 1/2n |x W^T - y|^2 + strength/2 sum_ij s_ij (U_G^T (W - old) U_A)_ij^2, as one linear system in vec(W).
    turn = torch.kron(basis.outputs[0], basis.inputs[0])
    pull = 0.05 * turn @ torch.diag(basis.eigenvalues[0, 0].flatten()) @ turn.T
    curve = torch.kron(torch.eye(3, dtype=torch.double), x.T @ x / 64) + pull
    best = torch.linalg.solve(curve, (targets.T @ x / 64).flatten() + pull @ old.flatten()).reshape(3, 7)
    for _ in range(5000):
        opt.zero_grad()
        ((model(inputs) - targets) ** 2).sum(1).mean().mul(0.5).backward()
        opt.step()
    found = torch.cat([model.weight, model.bias[:, None]], 1).detach()
    if name != "adam":
        torch.testing.assert_close(found, best, rtol=0, atol=1e-5)
        return

    def value(w):
        drift = (w - old).flatten()
        return float(((x @ w.T - targets) ** 2).sum(1).mean() / 2 + drift @ pull @ drift / 2)

    # Adam's metric is seen along directions by its diagonal there, so the fixed point is only close to the minimiser.
    assert value(found) - value(best) < 0.01 * (value(old) - value(best))


def test_an_optimizer_nobody_knows_is_measured():
    """Steps of fixed length along the gradient: gamma is that length over the gradient's."""

    class Fixed(torch.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {"lr": 0.01})

        @torch.no_grad()
        def step(self):
            for p in self.param_groups[0]["params"]:
                p.sub_(self.param_groups[0]["lr"] * p.grad / p.grad.norm())

    torch.manual_seed(0)
    model = nn.Linear(5, 1, bias=False).double()
    opt = DRCL.around(Fixed(list(model.named_parameters())), strength=0.1, prox="l1", plasticity_steps=2)
    f = torch.rand(1, 5, dtype=torch.double) + 0.1
    opt.consolidate(model, None, importance=Known({"weight": f}))
    a = model.weight.detach().clone()
    gradients = torch.randn(2, 1, 5, dtype=torch.double)
    x = a.clone()
    for g in gradients:
        model.weight.grad = g.clone()
        opt.step()
        x = x - 0.01 * g / g.norm()
    gamma = (x - a).norm() / gradients.sum(0).norm()
    d = x - a
    expected = a + d.sign() * (d.abs() - gamma * 0.1 * f / f.mean()).clamp(min=0)
    torch.testing.assert_close(model.weight.detach(), expected)
    assert "gradients" not in opt.state[model.weight]


def test_gradients_summed_in_an_open_proposal_are_saved():
    def made():
        torch.manual_seed(0)
        model = nn.Linear(4, 2)
        opt = DRCL.around(torch.optim.RMSprop(model.named_parameters(), lr=0.01), strength=0.1, plasticity_steps=3)
        opt.consolidate(model, [(torch.randn(8, 4), torch.zeros(8, dtype=torch.long))], importance=Fisher(samples=8))
        return model, opt

    def steps(model, opt, n):
        for k in range(n):
            opt.zero_grad()
            torch.manual_seed(k + 10 * opt.progress.steps_in_proposal)
            (model(torch.randn(8, 4)) ** 2).sum().backward()
            opt.step()

    (one, first), (two, second) = made(), made()
    steps(one, first, 2)
    state = first.state_dict()
    second.load_state_dict(state)
    two.load_state_dict(one.state_dict())
    steps(one, first, 4), steps(two, second, 4)
    assert torch.equal(one.weight, two.weight)


def test_rates():
    assert rate({"lr": 0.1}) == 0.1
    assert rate({"lr": 0.1, "momentum": 0.9}) == pytest.approx(1.0)
    assert rate({"lr": 0.1, "momentum": 0.9, "dampening": 0.9}) == pytest.approx(0.1)
    assert rate({"lr": 0.1, "momentum": 1.0}) == 0.1  # nothing lasts that grows without bound
