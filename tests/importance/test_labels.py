"""Derivatives of per-sample losses with respect to logits, against autograd and the covariance they stand for."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.importance.problems import labelled, named, softmax_regression
from torch import nn

from drcl.importance import Fisher
from drcl.importance.labels import (
    exact_cotangents,
    loss_cotangents,
    observed_cotangents,
    sampled_cotangents,
    signed_cotangents,
)

X, Y = labelled(6)


def logits(samples=7, classes=4, scale=2.0):
    return scale * torch.randn(samples, classes, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def covariance(output):
    """Of a one-hot label drawn from the softmax of each row."""
    p = output.softmax(1)
    return torch.diag_embed(p) - p[:, :, None] * p[:, None]


@pytest.mark.parametrize("classes", [2, 3, 7])
@pytest.mark.parametrize("scale", [0.0, 2.0, 300.0])
def test_exact_cotangents_are_a_factor_of_the_covariance(classes, scale):
    """One fewer than there are classes; also where the model is so sure that whole classes have no mass."""
    output = logits(classes=classes, scale=scale)
    found = exact_cotangents(output, len(output))
    assert len(found) == classes - 1
    columns = torch.stack([column for (column,) in found], 2)
    torch.testing.assert_close(columns @ columns.mT, covariance(output), rtol=1e-9, atol=1e-14)


def test_signs_give_the_covariance_in_the_mean_and_itself_with_two_classes():
    output = logits(3)
    rng = np.random.default_rng(0)
    draws = torch.stack([signed_cotangents(output, 3, rng)[0][0] for _ in range(4000)])
    squares = draws[..., :, None] * draws[..., None, :]
    error = (squares.mean(0) - covariance(output)).abs()
    assert bool((error <= 5 * squares.std(0) / 4000**0.5 + 1e-12).all())
    two = logits(5, 2)
    v = signed_cotangents(two, 5, rng)[0][0]
    torch.testing.assert_close(v[:, :, None] * v[:, None], covariance(two))


def test_drawn_labels_have_the_frequencies_of_the_softmax():
    """p minus a one-hot label, whichever was drawn; as often as the softmax says, within five standard errors."""
    output = logits(1)
    p = output.softmax(1)[0]
    v = sampled_cotangents(output.expand(20_000, -1), 20_000, np.random.default_rng(0))[0][0]
    label = p - v
    assert torch.equal(label.round().abs().sum(1), torch.ones(20_000, dtype=torch.float64))
    torch.testing.assert_close(label, label.round(), rtol=0, atol=1e-12)
    assert bool(((label.mean(0) - p).abs() < 5 * (p * (1 - p) / 20_000).sqrt()).all())


def test_true_labels_give_the_derivative_of_cross_entropy():
    output = logits().requires_grad_()
    target = torch.tensor([0, 1, 2, 3, 0, 1, 2])
    expected = torch.autograd.grad(F.cross_entropy(output, target, reduction="sum"), output)[0]
    torch.testing.assert_close(observed_cotangents(output, target, 7)[0][0], expected)


def test_own_losses_are_differentiated_sample_by_sample():
    """A vector of losses, or a mean that weighs each sample by its own label."""
    output, target = logits().requires_grad_(), torch.tensor([0, 1, 2, 3, 0, 1, 2])
    weight = torch.tensor([1.0, 5.0, 0.1, 2.0], dtype=torch.float64)

    def mean(o, t):
        return F.cross_entropy(o, t, weight=weight)

    each = [mean(output[i : i + 1], target[i : i + 1]) for i in range(7)]
    expected = torch.autograd.grad(sum(each), output)[0]
    torch.testing.assert_close(loss_cotangents(mean, output, target, 7)[0][0], expected)

    def vector(o, t):
        return F.cross_entropy(o, t, reduction="none")

    torch.testing.assert_close(loss_cotangents(vector, output, target, 7), observed_cotangents(output, target, 7))
    unused = {"a": output, "b": torch.ones(7, 2, dtype=torch.float64)}
    found = loss_cotangents(lambda o, t: o["a"].square().sum(1), unused, None, 7)
    torch.testing.assert_close(found, [[2 * output.detach(), torch.zeros(7, 2, dtype=torch.float64)]])


@pytest.mark.parametrize(
    ("tail", "message"),
    [
        (nn.Unflatten(1, (3, 1)), r"logits must have shape \[samples, classes\], got \[6, 3, 1\]"),
        (nn.Flatten(0), r"logits must have shape \[samples, classes\], got \["),
        (nn.Linear(3, 1).double(), "have one class"),
    ],
)
@pytest.mark.parametrize("labels", ["sampled", "signs", "empirical", "exact"])
def test_outputs_that_are_not_logits_are_refused(tail, message, labels):
    model = nn.Sequential(nn.Linear(4, 3).double(), copy.deepcopy(tail))
    with pytest.raises(ValueError, match=message):
        Fisher(labels=labels).estimate(model, [(X, Y)], named(model))


def test_loss_of_the_wrong_shape_is_refused():
    model = softmax_regression()
    with pytest.raises(ValueError, match="a scalar or a vector of the 6 samples' losses, got \\[6, 3\\]"):
        Fisher(labels="empirical", loss=lambda o, t: o**2).estimate(model, [(X, Y)], named(model))
    with pytest.raises(ValueError, match="does not depend on the output"):
        Fisher(labels="empirical", loss=lambda o, t: o.detach().sum()).estimate(model, [(X, Y)], named(model))
