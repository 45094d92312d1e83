"""The quadratic drift penalty: its gradient in closed form is the one of autograd, and it pulls where algebra says."""

from __future__ import annotations

import pytest
import torch
from tests.lab.methods.learners import prepared
from torch import nn

from drcl.lab.methods import _quadratic


@pytest.mark.parametrize("name", ["l2", "ewc"])
def test_the_penalty_is_zero_at_the_start_and_its_gradient_is_the_closed_form(name):
    made, start = prepared(name, lam=3.0)
    method = made.method
    assert float(method.penalty().detach()) == 0
    with torch.no_grad():
        for p in made.model.parameters():
            p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(1)) * 0.1)
    by_autograd = torch.autograd.grad(method.penalty(), list(made.model.parameters()))
    for p in made.model.parameters():
        p.grad = torch.zeros_like(p)
    method.after_backward()
    fisher = (
        method.state["anchors"][0]["fisher"] if name == "ewc" else {n: torch.ones_like(p) for n, p in start.items()}
    )
    for (n, p), g in zip(made.model.named_parameters(), by_autograd):
        torch.testing.assert_close(p.grad, 3.0 * fisher[n] * (p.detach() - start[n]))
        torch.testing.assert_close(p.grad, g)


def test_a_weight_that_is_not_trained_is_not_pulled():
    made, _ = prepared("l2")
    for p in made.model.parameters():
        p.grad = None
    made.method.after_backward()
    assert all(p.grad is None for p in made.model.parameters())


def test_two_quadratics_meet_where_algebra_says():
    """For L2(w) = (w - b)' H (w - b) / 2 the minimiser is (H + lam F)^-1 (H b + lam F a)."""
    made, _ = prepared("ewc", lam=2.0)
    method, p = made.method, next(made.model.parameters())
    rng = torch.Generator().manual_seed(3)
    a, b, fisher, h = (torch.rand(p.shape, generator=rng) + 0.1 for _ in range(4))
    name = next(n for n, _ in made.model.named_parameters())
    method.state["anchors"] = [{"weights": {name: a}, "fisher": {name: fisher}}]
    optimizer = torch.optim.SGD([p], lr=0.1)
    for _ in range(2000):
        optimizer.zero_grad()
        (0.5 * h * (p - b).square()).sum().backward()
        method.after_backward()
        optimizer.step()
    torch.testing.assert_close(p.detach(), (h * b + 2.0 * fisher * a) / (h + 2.0 * fisher), rtol=1e-4, atol=1e-5)


def test_the_pull_is_the_gradient_of_the_penalty():
    generator = torch.Generator().manual_seed(0)
    own = {name: nn.Parameter(torch.randn(3, 2, generator=generator)) for name in ("a", "b")}
    anchor = _quadratic.copies(own)
    weights = {name: torch.rand(3, 2, generator=generator) for name in own}
    with torch.no_grad():
        for p in own.values():
            p.add_(1.0)
    for importance in (None, weights):
        by_autograd = torch.autograd.grad(_quadratic.penalty(own, anchor, importance, 3.0), list(own.values()))
        for p in own.values():
            p.grad = torch.ones_like(p)
        _quadratic.add_pull(own, anchor, importance, 3.0)
        for p, g in zip(own.values(), by_autograd, strict=True):
            assert p.grad is not None
            torch.testing.assert_close(p.grad, 1 + g)
    # every weight moved by 1: lam / 2 times the sum of the weights of the squares
    found = _quadratic.penalty(own, anchor, weights, 3.0).item()
    assert found == pytest.approx(1.5 * sum(float(w.sum()) for w in weights.values()), rel=1e-5)


def test_anchors_are_copies():
    own = {"a": nn.Parameter(torch.zeros(2))}
    kept = _quadratic.copies(own)
    with torch.no_grad():
        own["a"].add_(5)
    assert kept["a"].tolist() == [0, 0]
    assert not kept["a"].requires_grad


def test_without_an_anchor_there_is_no_penalty():
    assert _quadratic.penalty({}, {}, None, 1.0).item() == 0
    _quadratic.add_pull({}, {}, None, 1.0)
