"""The definition of per-sample moments by plain autograd, and how the library is held against it."""

import copy

import torch

from drcl.per_sample.hooks import OnePass
from drcl.per_sample.plan import per_sample_moments
from drcl.preserve import undisturbed


def brute_force(model, batch, cotangents, power=2):
    """The sum over samples of |gradient|^power by plain autograd, with none of the library's code."""
    model = copy.deepcopy(model).eval()
    names = [name for name, _ in model.named_parameters()]
    totals = {name: torch.zeros_like(p, requires_grad=False) for name, p in model.named_parameters()}
    for i in range(len(batch)):
        for v in cotangents:
            loss = (model(batch[i : i + 1]) * v[i : i + 1]).sum()
            gradients = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
            for name, g in zip(names, gradients):
                if g is not None:
                    totals[name] += g.abs() ** power
    return totals


def moments(model, batches, cotangents, power=2, names=None):
    """The library's sums; `cotangents` are those of all samples, in order."""
    parameters = {n: p for n, p in model.named_parameters() if names is None or n in names}
    taken = 0

    def directions(output, target, length):
        nonlocal taken
        taken += length
        return [[v[taken - length : taken]] for v in cotangents]

    with undisturbed(model):
        model.eval()
        totals, count = per_sample_moments(
            model, [(b,) for b in batches], parameters, lambda m, b: (m(b[0]), None), directions, power
        )
    assert count == sum(len(b) for b in batches)
    return totals


def check(model, x, power=2, directions=1, batch=None, rtol=1e-9):
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        shape = copy.deepcopy(model).eval()(x).shape
    like = next(model.parameters())
    cotangents = [torch.randn(shape, generator=generator).to(like) for _ in range(directions)]
    expected = brute_force(model, x, cotangents, power)
    found = moments(model, x.split(batch or len(x)), cotangents, power)
    assert set(found) == set(expected)
    for name, truth in expected.items():
        error = (found[name] - truth).norm()
        assert error <= rtol * truth.norm(), (name, float(error / truth.norm()))
        assert (found[name] >= 0).all()


def covered(model):
    model.eval()
    return set(OnePass(model, dict(model.named_parameters())).names)


def doubles(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def tokens(n, length=7, vocabulary=23):
    return torch.randint(vocabulary, (n, length), generator=torch.Generator().manual_seed(1))
