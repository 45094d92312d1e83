"""Kronecker-factored Laplace: its quadratic against the full matrix, its factors against second moments by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.lab.methods.loop import KINDS, MLP, Walk, assert_resumes, assert_same_weights, toy_stream, weights
from torch import Tensor, nn
from torch.nn import functional as F

from drcl.lab.methods import _kronecker
from drcl.lab.methods.ewc import EWC
from drcl.lab.methods.kf_laplace import KroneckerLaplace
from drcl.lab.methods.sgd import SGD

FEW = {"samples": 20}


def layers(walk: Walk) -> dict[str, nn.Module]:
    """Linear and convolutional layers of the trunk, by the name of their weight."""
    found = {f"{name}.weight": layer for name, layer in walk.model.named_modules()}
    return {
        name: layer
        for name, layer in found.items()
        if isinstance(layer, nn.Linear | nn.Conv2d) and name.startswith("trunk")
    }


def move(walk: Walk, seed: int = 1) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in walk.model.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=generator))


def joined(tensors: dict[str, Tensor], name: str) -> np.ndarray:
    weight, bias = tensors[name], tensors[name.removesuffix("weight") + "bias"]
    return torch.cat([weight.flatten(1), bias[:, None]], 1).double().numpy()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["summed", "separate"])
def test_its_gradient_is_that_of_the_full_quadratic(kind: str, how: Any) -> None:
    """After three tasks; the Kronecker product is written out, d (x) d numbers of each layer."""
    walk = Walk(KroneckerLaplace(lam=3.0, kind=how, **FEW), toy_stream(), kind, epochs=1, lr=1e-3).run()
    method = walk.method
    assert float(method.penalty().detach()) == 0 or how == "separate"
    move(walk)
    now = weights(walk.model)
    anchors = method.state["anchors"]
    assert len(anchors) == (1 if how == "summed" else 3)
    wanted = {name: np.zeros_like(joined(now, name)) for name in layers(walk)}
    value = 0.0
    for anchor in anchors:
        for name, total in wanted.items():
            kept = anchor["factors"][name]
            full = np.kron(kept["outputs"][0].double().numpy(), kept["inputs"][0].double().numpy()) / kept["count"]
            drift = (joined(now, name) - joined(anchor["weights"], name)).ravel()
            total += 3.0 * (full @ drift).reshape(total.shape)
            value += 1.5 * drift @ full @ drift
    by_autograd = torch.autograd.grad(method.penalty(), list(method.protected().values()))
    for p in walk.model.parameters():
        p.grad = torch.zeros_like(p)
    method.after_backward()
    found = {name: p.grad for name, p in method.protected().items()}
    assert float(method.penalty().detach()) == pytest.approx(value, rel=1e-4)
    for name, total in wanted.items():
        np.testing.assert_allclose(joined(found, name), total, rtol=1e-3, atol=1e-4 * np.abs(total).max())
    for (name, g), other in zip(found.items(), by_autograd, strict=True):
        torch.testing.assert_close(g, other, rtol=1e-4, atol=1e-5, msg=name)
    heads = walk.model.groups()["heads"]
    assert all(not p.grad.any() for p in heads.values())


@pytest.mark.parametrize("kind", KINDS)
def test_its_factors_are_second_moments(kind: str) -> None:
    """One example at a time: inputs (patches) with a 1 behind, summed over positions; derivatives, their mean."""
    tasks = toy_stream(per_class=4)
    walk = Walk(KroneckerLaplace(samples=None, labels="empirical"), tasks, kind)
    walk.task(tasks[0], 1)
    seen: dict[str, tuple[Tensor, Tensor]] = {}
    sums: dict[str, list[Tensor]] = {}

    def look(name: str, layer: nn.Module) -> Any:
        def hook(module: nn.Module, args: Any, output: Tensor) -> None:
            output.retain_grad()
            seen[name] = (args[0].detach(), output)

        return layer.register_forward_hook(hook)

    handles = [look(name, layer) for name, layer in layers(walk).items()]
    x, y = tasks[0].train.take(slice(None))
    walk.model.eval()
    for each in range(len(x)):
        F.cross_entropy(walk.model(x[each : each + 1], 0), y[each : each + 1]).backward()
        for name, layer in layers(walk).items():
            inputs, output = seen[name]
            if isinstance(layer, nn.Conv2d):
                inputs = F.unfold(inputs, 3, padding=1)[0].T
                d = output.grad[0].flatten(1).T
            else:
                d = output.grad
            inputs = torch.cat([inputs, torch.ones(len(inputs), 1)], 1)
            new = [inputs.T @ inputs / len(x), d.T @ d / len(d) / len(x)]
            sums[name] = [a + b for a, b in zip(sums[name], new)] if name in sums else new
    for handle in handles:
        handle.remove()
    (anchor,) = walk.method.state["anchors"]
    assert not anchor["diagonal"]
    for name, (a, g) in sums.items():
        torch.testing.assert_close(anchor["factors"][name]["inputs"][0], a, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(anchor["factors"][name]["outputs"][0], g, rtol=1e-4, atol=1e-7)


def sides(walk_parameters: dict[str, Tensor], task: int) -> dict[str, tuple[Tensor, Tensor]]:
    """Diagonals of made-up factors, others for every layer and task."""
    found = {}
    for name, p in walk_parameters.items():
        if name.endswith("weight"):
            generator = torch.Generator().manual_seed(1000 * task + p.numel())
            made = [torch.rand(n, generator=generator) for n in (p[0].numel() + 1, len(p))]
            found[name] = (made[0], made[1])
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_with_diagonal_factors_it_is_ewc(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """F_ij = G_ii A_jj for all three tasks, each with its own penalty."""

    def measure(method: Any, task: Any, *more: Any, **options: Any) -> Any:
        made = sides(method.protected(), task.index)
        return _kronecker.Information(
            {
                name: _kronecker.from_factors(method.protected(), name, torch.diag(a)[None], torch.diag(g)[None], 1.0)
                for name, (a, g) in made.items()
            }
        )

    class ByHand(EWC):
        def fisher(self, task: Any) -> dict[str, Tensor]:
            found = {}
            for name, (a, g) in sides(self.protected(), task.index).items():
                both = torch.outer(g, a)
                found[name] = both[:, :-1].reshape(self.protected()[name].shape)
                found[name.removesuffix("weight") + "bias"] = both[:, -1]
            return found

    monkeypatch.setattr(_kronecker, "measure", measure)
    found = Walk(KroneckerLaplace(lam=2.0, kind="separate"), toy_stream(), kind).run()
    wanted = Walk(ByHand(lam=2.0, kind="separate"), toy_stream(), kind).run()
    plain = Walk(SGD(), toy_stream(), kind).run()
    far = 0.0
    for name, p in wanted.model.named_parameters():
        torch.testing.assert_close(dict(found.model.named_parameters())[name], p, rtol=1e-3, atol=1e-5)
        far = max(far, float((dict(plain.model.named_parameters())[name] - p).detach().abs().max()))
    assert far > 1e-2  # the penalty mattered


@pytest.mark.parametrize("kind", KINDS)
def test_factors_are_summed(kind: str) -> None:
    """With lam = 0 both kinds train alike, so what they measure can be compared."""
    one = Walk(KroneckerLaplace(lam=0.0, kind="separate", **FEW), toy_stream(), kind, epochs=1).run()
    both = Walk(KroneckerLaplace(lam=0.0, kind="summed", **FEW), toy_stream(), kind, epochs=1).run()
    plain = Walk(SGD(), toy_stream(), kind, epochs=1).run()
    assert_same_weights(one.model, both.model)
    for name, p in plain.model.named_parameters():
        torch.testing.assert_close(dict(one.model.named_parameters())[name], p)
    (found,) = both.method.state["anchors"]
    for name, made in found["factors"].items():
        assert made["count"] == 3
        for side in ("inputs", "outputs"):
            wanted = sum(a["factors"][name][side] for a in one.method.state["anchors"])
            torch.testing.assert_close(made[side], wanted)


def test_what_is_no_layer_is_held_by_its_diagonal() -> None:
    walk = Walk(KroneckerLaplace(lam=2.0, **FEW), toy_stream(), MLP | {"norm": "group"}, epochs=1).run()
    (anchor,) = walk.method.state["anchors"]
    assert set(anchor["diagonal"]) == {n for n in walk.method.protected() if "norm" in n}
    move(walk)
    for p in walk.model.parameters():
        p.grad = torch.zeros_like(p)
    walk.method.after_backward()
    for name, fisher in anchor["diagonal"].items():
        p = walk.method.protected()[name]
        torch.testing.assert_close(p.grad, 2.0 * fisher * (p.detach() - anchor["weights"][name]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["summed", "separate"])
def test_it_resumes_bit_for_bit(kind: str, how: Any) -> None:
    assert_resumes(lambda: KroneckerLaplace(kind=how, **FEW), kind)
    assert_resumes(lambda: KroneckerLaplace(kind=how, **FEW), kind, "domain")


def test_it_warns_where_the_penalty_alone_can_diverge() -> None:
    tasks = toy_stream()
    walk = Walk(KroneckerLaplace(lam=1e9, **FEW), tasks, MLP, lr=0.01)
    with pytest.warns(UserWarning, match=r"lr \* lam \* \(largest curvature\)"):
        walk.task(tasks[0], 1)


@pytest.mark.parametrize("wrong", [{"lam": -1.0}, {"lam": float("nan")}, {"lam": float("inf")}, {"samples": 0}])
def test_bad_values_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"kf-laplace: {next(iter(wrong))}="):
        KroneckerLaplace(**wrong)
