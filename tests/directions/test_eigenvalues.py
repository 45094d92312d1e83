"""Squares of gradients along directions: both ways to get them, and sums with random signs, against loops."""

import itertools

import pytest
import torch
from tests.directions.problems import random_basis
from torch import nn

from drcl.directions.eigenvalues import Eigenvalues


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def doubles(*shape, seed=0):
    return torch.randn(*shape, generator=rng(seed)).double()


def by_hand(basis, gradients):
    """Sums over rows, columns and the rest of what a basis leaves out, from every sample's [m, n] gradient."""
    (j, k), total = basis.kept, torch.zeros_like(basis.eigenvalues[0, 0])
    v, u = (t[0] for t in (basis.outputs, basis.inputs))
    whole = [torch.linalg.qr(torch.cat([t, torch.eye(len(t)).double()], 1))[0] for t in (v, u)]
    for g in gradients:
        s = (whole[0].T @ g @ whole[1]).square()
        total[:j, :k] += s[:j, :k]
        if k < len(u):
            total[:j, k] += s[:j, k:].sum(1)
        if j < len(v):
            total[j, :k] += s[j:, :k].sum(0)
        if k < len(u) and j < len(v):
            total[j, k] += s[j:, k:].sum()
    return total


@pytest.mark.parametrize("thin", [True, False])
@pytest.mark.parametrize(("j", "k"), [(4, 5), (2, 5), (4, 3), (2, 3), (1, 4)])
def test_rotated_rows_and_rotated_gradients_say_the_same(monkeypatch, thin, j, k):
    monkeypatch.setattr(Eigenvalues, "_thin", lambda self, at: thin)
    basis, layer = random_basis(rng(j), j, k), nn.Linear(4, 4).double()
    x, d = doubles(6, 1, 7, 4), doubles(6, 1, 7, 4, seed=1)
    found = Eigenvalues(layer, basis, samples=6)
    found.add(x[:4], d[:4])
    found.add(x[4:], d[4:])
    rows = torch.cat([x[:, 0], torch.ones(6, 7, 1).double()], -1)
    truth = by_hand(basis, d[:, 0].mT @ rows)
    torch.testing.assert_close(found.total[0, 0], truth)
    assert found.trace() == pytest.approx(float((d[:, 0].mT @ rows).square().sum()) / 6)


@pytest.mark.parametrize("thin", [True, False])
@pytest.mark.parametrize("apart", [True, False])
def test_a_convolution_needs_no_patches(monkeypatch, thin, apart):
    monkeypatch.setattr(Eigenvalues, "_thin", lambda self, at: thin)
    conv = nn.Conv2d(3, 4, 2, padding=1, stride=2, bias=not apart).double()
    size = (4, 3) if apart else (4, 13)
    basis = random_basis(rng(5), 2, 2, size=size, positions=4 if apart else 1)
    basis = basis if not apart else type(basis)(**{**vars(basis), "bias": False})
    x = doubles(5, 3, 5, 5)
    out = conv(x)
    d = doubles(*out.shape, seed=2)
    found = Eigenvalues(conv, basis, samples=5)
    found.add(x[:, None], d[:, None])
    gradients = []
    for i in range(5):
        g = torch.autograd.grad((conv(x[i : i + 1]) * d[i]).sum(), list(conv.parameters()))
        gradients.append(g[0].flatten(1) if apart else torch.cat([g[0].flatten(1), g[1][:, None]], 1))
    for position in range(4 if apart else 1):
        some = [g.reshape(4, 3, 4)[..., position] for g in gradients] if apart else gradients
        torch.testing.assert_close(found.total[0, position], by_hand(basis, some))


class Signs:
    """In place of the generator: these signs, in turn."""

    def __init__(self, signs):
        self.signs = signs

    def choice(self, values, length):
        return torch.tensor(self.signs[:length]).double().numpy()


@pytest.mark.parametrize("samples", [3, 5])
def test_sums_with_random_signs_are_unbiased(samples):
    """The mean over all patterns of signs is the sum over single samples: nothing is left to chance here."""
    basis, layer = random_basis(rng(3), 2, 3), nn.Linear(4, 4).double()
    x, d = doubles(samples, 1, 2, 4), doubles(samples, 1, 2, 4, seed=1)
    exact = Eigenvalues(layer, basis, samples)
    exact.add(x, d)
    patterns, mean = list(itertools.product((-1.0, 1.0), repeat=samples)), 0
    for signs in patterns:
        found = Eigenvalues(layer, basis, samples, together=3)
        found._rng = Signs(signs)
        found.add(x, d)
        mean = mean + found.total / len(patterns)
    torch.testing.assert_close(mean, exact.total)


def test_the_spread_of_an_estimate_is_what_its_number_of_sums_says():
    """64 sums of four samples each: a factor of 1 +- sqrt(2 / 64), which is 18 per cent."""
    basis, layer = random_basis(rng(4), 4, 5), nn.Linear(4, 4).double()
    x, d = doubles(256, 1, 1, 4), doubles(256, 1, 1, 4, seed=1)
    exact = Eigenvalues(layer, basis, 256)
    exact.add(x, d)
    apart = []
    for seed in range(20):
        found = Eigenvalues(layer, basis, 256, together=4, seed=seed)
        found.add(x, d)
        apart.append((found.total / exact.total - 1).flatten())
    apart = torch.stack(apart)
    assert apart.mean().abs() < 0.03
    assert 0.1 < apart.std() < 0.25
