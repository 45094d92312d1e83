"""Likelihoods: derivatives against autograd, factors against covariances written out, signs over all of them."""

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from drcl.importance import likelihood
from drcl.importance.likelihood import LIKELIHOODS, of_loss, of_model


def rows(n=3, k=4, scale=2.0):
    return scale * torch.randn(n, k, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def covariance(name, output):
    """Of the derivative of -log p over labels drawn from it."""
    if name == "softmax":
        p = output.softmax(1)
        return torch.diag_embed(p) - p[:, :, None] * p[:, None]
    p = output.sigmoid()
    return torch.diag_embed(p * (1 - p) if name == "bernoulli" else torch.ones_like(output))


@pytest.mark.parametrize("scale", [0.0, 2.0, 300.0])
@pytest.mark.parametrize("k", [2, 3, 5])
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_all_signs_together_give_the_covariance(name, k, scale):
    """The mean over every choice of signs, not a sample of them."""
    family, output = LIKELIHOODS[name], rows(3, k, scale)
    total, signs = (
        torch.zeros(3, k, k, dtype=torch.float64),
        list(itertools.product((-1.0, 1.0), repeat=family.columns(output))),
    )
    for choice in signs:
        v = family.combined(output, torch.tensor([choice] * 3, dtype=torch.float64))
        total += v[:, :, None] * v[:, None] / len(signs)
    torch.testing.assert_close(total, covariance(name, output), rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_columns_are_a_factor_of_the_covariance_and_signs_their_sum(name):
    family, output = LIKELIHOODS[name], rows(3, 5)
    columns = torch.stack([family.column(output, k) for k in range(family.columns(output))], 2)
    torch.testing.assert_close(columns @ columns.mT, covariance(name, output))
    signs = torch.tensor([[1.0, -1.0, -1.0, 1.0, -1.0]] * 3, dtype=torch.float64)[:, : columns.shape[2]]
    torch.testing.assert_close(family.combined(output, signs), (columns @ signs[:, :, None])[:, :, 0])


def test_a_vocabulary_needs_no_more_than_a_few_classes(monkeypatch):
    """In parts or at once, the same bits; and no row is a nan."""
    output = rows(6, 20_000)
    whole = [getattr(f, how)(output, np.random.default_rng(0)) for f in LIKELIHOODS.values() for how in HOW]
    monkeypatch.setattr(likelihood, "CHUNK", 40_000)
    parts = [getattr(f, how)(output, np.random.default_rng(0)) for f in LIKELIHOODS.values() for how in HOW]
    assert all(torch.equal(a, b) and bool(a.isfinite().all()) for a, b in zip(whole, parts))


HOW = ("drawn", "signed")


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_drawn_labels_have_the_covariance(name):
    output = rows(1, 3).expand(40_000, -1)
    v = LIKELIHOODS[name].drawn(output, np.random.default_rng(0))
    squares = v[:, :, None] * v[:, None]
    error = (squares.mean(0) - covariance(name, output[:1])[0]).abs()
    assert bool((error <= 5 * squares.std(0) / 200 + 1e-12).all())
    assert bool((v.mean(0).abs() <= 5 * v.std(0) / 200).all())


def test_observed_labels_give_the_derivative_of_the_loss():
    output = rows().requires_grad_()
    yes, number, shares = (rows() > 0).double(), rows(scale=1.0), rows().softmax(1)
    label = torch.tensor([0, 3, 1])
    for name, target, loss in (
        ("softmax", label, F.cross_entropy(output, label, reduction="sum")),
        ("softmax", shares, F.cross_entropy(output, shares, reduction="sum")),
        ("bernoulli", yes, F.binary_cross_entropy_with_logits(output, yes, reduction="sum")),
        ("gaussian", number, 0.5 * F.mse_loss(output, number, reduction="sum")),
    ):
        expected = torch.autograd.grad(loss, output)[0]
        torch.testing.assert_close(LIKELIHOODS[name].observed(output.detach(), target), expected)


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (nn.CrossEntropyLoss(), "softmax"),
        (F.cross_entropy, "softmax"),
        (nn.BCEWithLogitsLoss(), "bernoulli"),
        (F.binary_cross_entropy_with_logits, "bernoulli"),
        (nn.MSELoss(), "gaussian"),
        (F.mse_loss, "gaussian"),
        (nn.CrossEntropyLoss(weight=torch.ones(3)), None),
        (nn.CrossEntropyLoss(label_smoothing=0.1), None),
        (nn.CrossEntropyLoss(ignore_index=0), None),
        (nn.BCEWithLogitsLoss(pos_weight=torch.ones(3)), None),
        (nn.L1Loss(), None),
        (lambda o, t: o, None),
    ],
)
def test_a_loss_tells_its_likelihood(loss, expected):
    assert of_loss(loss) == expected


class Config:
    def __init__(self, **values):
        self.__dict__.update(values)


class TinyForSequenceClassification(nn.Linear):
    pass


def test_a_config_tells_it_too():
    model = TinyForSequenceClassification(2, 2)
    assert of_model(model) is None
    for problem, expected in (
        ("regression", "gaussian"),
        ("multi_label_classification", "bernoulli"),
        ("single_label_classification", "softmax"),
        (None, None),
    ):
        model.config = Config(problem_type=problem, num_labels=2)
        assert of_model(model) == expected
    model.config = Config(problem_type=None, num_labels=1)
    assert of_model(model) == "gaussian"
