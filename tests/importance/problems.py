"""Small models, data and oracles that the tests of importance share."""

import copy
import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


def softmax_regression(features=4, classes=3, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(features, classes)).double()


def labelled(n, features=4, classes=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, features, generator=generator, dtype=torch.float64)
    return x, torch.randint(classes, (n,), generator=generator)


def named(model):
    return dict(model.named_parameters())


def squared_gradients(model, x, loss_of):
    """Mean over samples of squared gradients, sample by sample."""
    model = copy.deepcopy(model).eval()
    totals = {name: torch.zeros_like(p, requires_grad=False) for name, p in model.named_parameters()}
    for i in range(len(x)):
        for weight, loss in loss_of(model(x[i : i + 1]), i):
            gradients = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
            for name, g in zip(totals, gradients):
                totals[name] += weight * g**2 / len(x)
    return totals


def assert_same(found, expected, rtol=1e-9):
    assert set(found) == set(expected)
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=rtol, atol=1e-13)


class Restless(nn.Module):
    """Has everything a careless estimate could disturb, and disturbs some of it itself."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5))
        self.head = nn.Linear(6, 3)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("nothing", None)

    def forward(self, x):
        self.calls += 1
        return self.head(self.body(x))


def restless():
    torch.manual_seed(0)
    model = Restless().double().train()
    model.body[1].eval()
    model.head.bias.requires_grad_(False)
    x, y = labelled(16)
    F.cross_entropy(model(x), y).backward()
    return model, (x, y)


def snapshot(model):
    return {
        "modes": [m.training for m in model.modules()],
        "requires": [p.requires_grad for p in model.parameters()],
        "gradients": [(id(p.grad), None if p.grad is None else p.grad.clone()) for p in model.parameters()],
        "weights": [p.detach().clone() for p in model.parameters()],
        "buffers": [(id(b), b.clone()) for b in model.buffers()],
        "hooks": [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()],
        "torch": torch.get_rng_state(),
        "numpy": str(np.random.get_state()),  # noqa: NPY002
        "python": random.getstate(),
        "grad mode": torch.is_grad_enabled(),
        "fast path": torch.backends.mha.get_fastpath_enabled(),
    }


def assert_untouched(before, after):
    for key, value in before.items():
        if key in ("weights", "torch"):
            torch.testing.assert_close(after[key], value, rtol=0, atol=0)
        elif key in ("gradients", "buffers"):
            assert [i for i, _ in value] == [i for i, _ in after[key]], key
            for (_, a), (_, b) in zip(value, after[key]):
                assert (a is None) == (b is None)
                assert a is None or torch.equal(a, b), key
        else:
            assert value == after[key], key
