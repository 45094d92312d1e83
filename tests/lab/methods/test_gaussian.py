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


@pytest.mark.parametrize("local", [False, True])
def test_masks_multiply_weights_and_the_largest_of_a_unit_its_bias(local: bool) -> None:
    """Means by hand; the variance of sum_j m_j w_j x_j + (max m) b is sigma^2 (sum_j m_j^2 x_j^2 + (max m)^2)."""
    model = nn.Sequential(nn.Linear(3, 2))
    made = converted(model, 0.5)
    x, mask = torch.tensor([[1.0, -2.0, 0.5]]), torch.tensor([[0.5, 0.0, 1.0], [0.0, 0.25, 0.0]])
    weight, bias = model[0].weight.detach(), model[0].bias.detach()
    units = torch.tensor([1.0, 0.25])
    with torch.no_grad(), _gaussian.masked(made, {"0": mask}):
        torch.testing.assert_close(model(x), nn.functional.linear(x, weight * mask, bias * units))
        with _gaussian.noise(made.values(), torch.Generator().manual_seed(4), local):
            drawn = torch.stack([model(x)[0] for _ in range(4000)])
    assert made["0"].mask is None
    assert torch.equal(model(x), nn.functional.linear(x, weight, bias))
    variance = 0.25 * ((mask * x).square().sum(1) + units.square())
    torch.testing.assert_close(drawn.var(0), variance, rtol=0.12, atol=0)


def test_a_mask_on_channels_acts_on_whole_kernels() -> None:
    model, x = layers(), torch.randn(5, 2, 4, 4)
    made = converted(model)
    mask = torch.tensor([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]])
    masks = {"0": mask.view(3, 2, 1, 1), "3": torch.ones(4, 12)}
    with torch.no_grad(), _gaussian.masked(made, masks):
        found = model[0](x)
        wanted = nn.functional.conv2d(x[:, :1], model[0].weight[:, :1], model[0].bias, stride=2, padding=1)
    torch.testing.assert_close(found[:, 0], wanted[:, 0])
    assert (found[:, 1] == 0).all()


def test_kl_counts_what_it_is_told_to() -> None:
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randn(5, 3, generator=generator) for _ in range(2))
    s, t = (torch.rand(5, 3, generator=generator) + 0.1 for _ in range(2))
    counted = torch.rand(5, 3, generator=generator) < 0.4
    wanted = kl_divergence(Normal(a, s), Normal(b, t))[counted].sum()
    torch.testing.assert_close(_gaussian.kl(a, s, b, t, counted), wanted)
