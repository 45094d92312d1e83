"""Natural continual learning: the step of the paper, by full matrices, by a trust region, and where it ends."""

from __future__ import annotations

from typing import Any

import cvxpy
import numpy as np
import pytest
import torch
from tests.lab.methods.loop import KINDS, MLP, Walk, assert_resumes, toy_stream, weights
from torch import Tensor

from drcl.lab.methods import _kronecker
from drcl.lab.methods.l2 import L2
from drcl.lab.methods.ncl import NaturalContinualLearning as NCL

FEW = {"samples": 20}
SMALL = {"kind": "mlp", "hidden": [4, 3]}


def joined(tensors: dict[str, Any], name: str) -> np.ndarray:
    weight, bias = tensors[name].detach(), tensors[name.removesuffix("weight") + "bias"].detach()
    return torch.cat([weight.flatten(1), bias[:, None]], 1).double().numpy()


def moved(walk: Walk) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Somewhere else than the anchor, with some gradient; both are returned."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for p in walk.model.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=generator))
            p.grad = torch.randn(p.shape, generator=generator)
    return weights(walk.model), {n: p.grad.clone() for n, p in walk.model.named_parameters()}


def factors(walk: Walk, name: str) -> np.ndarray:
    """F of a layer, written out."""
    basis = walk.method.information.bases[name]
    a, g = basis.input_factor[0].double().numpy(), basis.output_factor[0].double().numpy()
    return np.kron(g, a) / basis.count


@pytest.mark.parametrize("kind", KINDS)
def test_the_step_is_the_natural_gradient_one(kind: str) -> None:
    """prior (F + prior)^-1 g + prior (w - a) after three tasks, by solving with the whole matrix of each layer."""
    walk = Walk(NCL(prior=0.01, **FEW), toy_stream(), kind, epochs=1).run()
    anchor = {n: t.clone() for n, t in walk.method.state["anchor"].items()}
    now, raw = moved(walk)
    walk.method.after_backward()
    found = {n: p.grad for n, p in walk.model.named_parameters()}
    assert all(basis.count == 3 for basis in walk.method.information.bases.values())
    for name in walk.method.information.bases:
        full = factors(walk, name)
        g = joined(raw, name)
        wanted = 0.01 * np.linalg.solve(full + 0.01 * np.eye(len(full)), g.ravel()).reshape(g.shape)
        wanted += 0.01 * (joined(now, name) - joined(anchor, name))
        np.testing.assert_allclose(joined(found, name), wanted, rtol=1e-3, atol=1e-4 * np.abs(wanted).max())
    for name, p in walk.model.groups()["heads"].items():
        assert torch.equal(p.grad, raw[name])


def test_it_is_the_steepest_step_of_a_trust_region() -> None:
    """Of all steps d with d^T (F + prior) d <= r^2, the one that lowers the linearised posterior most, by cvxpy."""
    walk = Walk(NCL(prior=0.02, **FEW), toy_stream(), SMALL, epochs=1).run()
    anchor = {n: t.clone() for n, t in walk.method.state["anchor"].items()}
    name = "trunk.fc2.weight"
    now, raw = moved(walk)
    precision = factors(walk, name)
    precision += 0.02 * np.eye(len(precision))
    slope = joined(raw, name).ravel() + precision @ (joined(now, name) - joined(anchor, name)).ravel()
    root = np.linalg.cholesky(precision)
    step = cvxpy.Variable(len(slope))
    cvxpy.Problem(cvxpy.Minimize(slope @ step), [cvxpy.norm(root.T @ step) <= 1.0]).solve()
    walk.method.after_backward()
    ours = -joined({n: p.grad for n, p in walk.model.named_parameters()}, name).ravel()
    cosine = ours @ step.value / np.linalg.norm(ours) / np.linalg.norm(step.value)
    assert cosine > 1 - 1e-6


def test_it_ends_where_the_posterior_is_largest() -> None:
    """For a task (w - b)^T H (w - b) / 2 that is (H + F + prior)^-1 (H b + (F + prior) a)."""
    walk = Walk(NCL(prior=0.5, **FEW), toy_stream(), SMALL, epochs=1).run()
    name = "trunk.fc2.weight"
    precision = factors(walk, name) + 0.5 * np.eye(15)
    rng = np.random.default_rng(0)
    root, b = rng.normal(size=(15, 15)), rng.normal(size=15)
    hessian = root @ root.T / 15 + 0.1 * np.eye(15)
    a = joined(walk.method.state["anchor"], name).ravel()
    wanted = np.linalg.solve(hessian + precision, hessian @ b + precision @ a)
    layer = walk.model.trunk.fc2
    h, target = torch.from_numpy(hessian).float(), torch.from_numpy(b).float()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.3)
    for _ in range(2000):
        walk.model.zero_grad()
        w = torch.cat([layer.weight, layer.bias[:, None]], 1).flatten() - target
        (0.5 * w @ h @ w).backward()
        walk.method.after_backward()
        optimizer.step()
    found = joined({n: p for n, p in walk.model.named_parameters()}, name).ravel()
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4)


class Known(NCL):
    """With factors that are the identity times some number."""

    size = 0.0
    name = "l2"

    def after_task(self, task: Any) -> None:
        own = self.protected()
        bases = {}
        for name, p in own.items():
            if name.endswith("weight"):
                a, g = torch.eye(p[0].numel() + 1)[None], torch.eye(len(p))[None]
                made = torch.full((1, 1, len(p), a.shape[1]), self.size)
                bases[name] = _kronecker.Eigenbasis(a, g, made, a, g, True)
        known = _kronecker.Information(bases)
        self.state = {"anchor": {n: p.detach().clone() for n, p in own.items()}, "information": known.pack()}


class Slower(L2):
    """SGD with a pull to the anchor, in which the loss counts less once there is one."""

    def after_backward(self) -> None:
        if self.state:
            for p in self.protected().values():
                if p.grad is not None:
                    p.grad.mul_(self.lam / (self.lam + 1))
        super().after_backward()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("size", "rival"), [(0.0, L2), (1.0, Slower)])
def test_with_identity_factors_it_is_sgd_with_a_pull_to_the_anchor(kind: str, size: float, rival: type[L2]) -> None:
    """Without any information, L2; with A = G = 1 the loss counts prior / (1 + prior) of what it does there."""
    method = Known(prior=0.3)
    method.size = size
    found = Walk(method, toy_stream(), kind).run()
    wanted = Walk(rival(lam=0.3), toy_stream(), kind).run()
    for name, p in wanted.model.named_parameters():
        torch.testing.assert_close(dict(found.model.named_parameters())[name], p, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("scale", [1.0, 1e8])
def test_the_pull_does_not_overshoot_however_steep_the_information(scale: float) -> None:
    """Without a gradient of the loss a step goes the share lr * prior of the way back, in every direction."""
    walk = Walk(NCL(prior=0.1, **FEW), toy_stream(), MLP, epochs=1).run()
    for kept in walk.method.state["information"]["bases"].values():
        kept["tensors"]["eigenvalues"].mul_(scale)
    anchor = {n: t.clone() for n, t in walk.method.state["anchor"].items()}
    now, _ = moved(walk)
    optimizer = torch.optim.SGD(walk.method.protected().values(), lr=1.0)
    for _ in range(50):
        for p in walk.model.parameters():
            p.grad = torch.zeros_like(p)
        walk.method.after_backward()
        optimizer.step()
    for name, p in walk.method.protected().items():
        wanted = anchor[name] + 0.9**50 * (now[name] - anchor[name])
        torch.testing.assert_close(p.detach(), wanted, rtol=1e-3, atol=1e-6)


def test_the_first_task_is_fine_tuning_and_norm_layers_have_a_diagonal() -> None:
    walk = Walk(NCL(prior=0.1, **FEW), toy_stream(), MLP | {"norm": "group"}, epochs=1)
    _, raw = moved(walk)
    walk.method.after_backward()
    assert all(torch.equal(p.grad, raw[n]) for n, p in walk.model.named_parameters())
    walk.run()
    diagonal = walk.method.information.diagonal
    assert set(diagonal) == {n for n in walk.method.protected() if "norm" in n}
    anchor = {n: t.clone() for n, t in walk.method.state["anchor"].items()}
    now, raw = moved(walk)
    walk.method.after_backward()
    for name, fisher in diagonal.items():
        wanted = 0.1 * raw[name] / (fisher + 0.1) + 0.1 * (now[name] - anchor[name])
        torch.testing.assert_close(walk.method.protected()[name].grad, wanted)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scenario", ["task", "domain"])
def test_it_resumes_bit_for_bit(kind: str, scenario: str) -> None:
    assert_resumes(lambda: NCL(**FEW), kind, scenario)


@pytest.mark.parametrize("wrong", [{"prior": 0.0}, {"prior": -1.0}, {"prior": float("inf")}, {"samples": 0}])
def test_bad_values_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"ncl: {next(iter(wrong))}="):
        NCL(**wrong)


def test_what_bends_the_step_is_refused() -> None:
    for setting, word in [({"weight_decay": 0.1}, "weight_decay"), ({"optimizer": "adam"}, "sgd")]:
        with pytest.raises(ValueError, match=f"ncl: .*{word}"):
            Walk(NCL(), toy_stream(), MLP, **setting)
