"""Gaussian layers against torch.distributions and against moments of many draws."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence

from drcl import Fisher
from drcl.lab.methods import _gaussian


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 3, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(12, 4))


def converted(model: nn.Module, sigma: float = 0.2, **how: object) -> dict[str, _gaussian.Gaussian]:
    return _gaussian.convert(model, dict(model.named_parameters()), lambda layer: sigma, **how)  # type: ignore[arg-type]


@pytest.mark.parametrize("how", [{}, {"positive": "plain"}, {"per_unit": True}])
def test_the_means_are_the_layer_that_was_there(how: dict) -> None:
    model, x = layers(), torch.randn(5, 2, 4, 4)
    before, names = model(x).detach(), set(dict(model.named_parameters()))
    made = converted(model, **how)
    assert torch.equal(model(x), before)
    assert names < set(dict(model.named_parameters()))
    for layer in made.values():
        torch.testing.assert_close(layer.sigma()[0], torch.full_like(layer.weight_scale, 0.2))
    shapes = {n: tuple(p.shape) for n, p in model.named_parameters() if "scale" in n}
    if "per_unit" in how:
        assert shapes == {"0.weight_scale": (3, 1, 1, 1), "3.weight_scale": (4, 1)}
    else:
        assert shapes["3.bias_scale"] == (4,)


@pytest.mark.parametrize("local", [False, True])
def test_outputs_have_the_right_mean_and_variance(local: bool) -> None:
    """Var of sum_j w_j x_j + b is sum_j sigma^2 x_j^2 + sigma^2, whichever way it is drawn."""
    model = nn.Sequential(nn.Linear(3, 2))
    made = converted(model, 0.5)
    x = torch.tensor([[1.0, -2.0, 0.5]])
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad(), _gaussian.noise(made.values(), generator, local):
        drawn = torch.stack([model(x)[0] for _ in range(4000)])
    variance = 0.25 * (1 + 4 + 0.25 + 1)
    torch.testing.assert_close(drawn.mean(0), model(x)[0].detach(), atol=5 * (variance / 4000) ** 0.5, rtol=0)
    torch.testing.assert_close(drawn.var(0), torch.full((2,), variance), rtol=0.12, atol=0)


def test_the_same_generator_draws_the_same_and_its_end_restores_the_means() -> None:
    model, x = layers(), torch.randn(2, 2, 4, 4)
    made = converted(model)
    drawn = []
    for _ in range(2):
        with _gaussian.noise(made.values(), torch.Generator().manual_seed(7)):
            drawn.append(model(x))
    assert torch.equal(*drawn)
    assert not torch.equal(drawn[0], model(x))
    assert torch.equal(model(x), model(x))


def test_kl_matches_torch_distributions() -> None:
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randn(5, 3, generator=generator) for _ in range(2))
    s, t = (torch.rand(5, 3, generator=generator) + 0.1 for _ in range(2))
    wanted = kl_divergence(Normal(a, s), Normal(b, t)).sum()
    torch.testing.assert_close(_gaussian.kl(a, s, b, t), wanted)
    torch.testing.assert_close(_gaussian.kl(a, s, 0.0, 2.0), kl_divergence(Normal(a, s), Normal(0.0, 2.0)).sum())
    assert _gaussian.kl(a, s, a, s) == 0


def test_plain_layers_answer_with_the_means_and_turn_back() -> None:
    model, x = layers(), torch.randn(5, 2, 4, 4)
    before, y = model(x).detach(), torch.tensor([0, 1, 2, 3, 0])
    made = converted(model)
    means = {f"{name}.weight": layer.weight for name, layer in made.items()}
    by_hand = {name: torch.zeros_like(p) for name, p in means.items()}
    for i in range(len(y)):
        loss = nn.functional.cross_entropy(model(x[i : i + 1]), y[i : i + 1])
        for name, g in zip(means, torch.autograd.grad(loss, list(means.values()))):
            by_hand[name] += g.square() / len(y)
    with _gaussian.plain(made.values()):
        assert {type(layer) for layer in made.values()} == {nn.Linear, nn.Conv2d}
        assert torch.equal(model(x), before)
        found = Fisher(samples=5, labels="empirical").estimate(model, [(x, y)], means)
    for name, value in found.items():
        torch.testing.assert_close(value, by_hand[name], rtol=1e-4, atol=1e-9)
    assert {type(layer) for layer in made.values()} == {_gaussian.GaussianLinear, _gaussian.GaussianConv2d}
