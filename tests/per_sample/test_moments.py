"""Moments of parameters that serve more than once: a sample's uses are summed before the power."""

import pytest
import torch
import torch.nn.functional as F
from tests.per_sample.definition import brute_force, check, covered, doubles, tokens
from torch import nn

from drcl.per_sample.hooks import OnePass, shapes_of_outputs
from drcl.per_sample.moments import MomentVisitor


class Tied(nn.Module):
    """A language model whose output layer shares the embedding's table, through a layer or by hand."""

    def __init__(self, by_hand):
        super().__init__()
        self.embedding = nn.Embedding(11, 6, padding_idx=0)
        self.body = nn.Linear(6, 6)
        self.out = nn.Linear(6, 11)
        self.by_hand = by_hand
        if by_hand:
            del self.out
        else:
            self.out.weight = self.embedding.weight

    def forward(self, ids):
        h = torch.tanh(self.body(self.embedding(ids)))
        return F.linear(h, self.embedding.weight) if self.by_hand else self.out(h)


@pytest.mark.parametrize("by_hand", [False, True])
def test_tied_weights_are_summed_before_the_power(by_hand):
    torch.manual_seed(0)
    model = Tied(by_hand).double()
    check(model, tokens(5, 6, 11))


class Repeated(nn.Module):
    """One layer used three times, at positions, and normalised by one norm in two places."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.cell = nn.Linear(6, 6)
        self.norm = nn.LayerNorm(6)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        h = self.first(x)
        for _ in range(3):
            h = torch.tanh(self.cell(self.norm(h))) + h
        return self.head(h.mean(1))


@pytest.mark.parametrize("power", [1, 2])
def test_layer_called_several_times(power):
    torch.manual_seed(0)
    model = Repeated().double()
    assert covered(model) == {n for n, _ in model.named_parameters()}
    check(model, doubles(5, 7, 4), power)


def test_repeated_convolution_and_batch_norm():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 3, padding=1)
            self.bn = nn.BatchNorm2d(3)
            self.bn.running_mean.uniform_(-1, 1)

        def forward(self, x):
            for _ in range(2):
                x = torch.tanh(self.bn(self.conv(x)))
            return x.mean((2, 3))

    check(Net().double(), doubles(4, 3, 5, 5))


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("chunk", [2**19, 30])
def test_a_visitor_adds_to_what_is_there(power, chunk, monkeypatch):
    """Two batches, two cotangents each; uses are summed within one cotangent and never across two."""
    monkeypatch.setattr("drcl.per_sample.layers.CPU_CHUNK", chunk)
    torch.manual_seed(0)
    model = Repeated().double().requires_grad_(False)
    parameters = dict(model.named_parameters())
    onepass = OnePass(model, parameters)
    with shapes_of_outputs(onepass.rules) as shapes:
        model(doubles(1, 7, 4))
    totals = {n: torch.zeros_like(p) for n, p in parameters.items()}
    expected = {n: torch.zeros_like(p) for n, p in parameters.items()}
    with onepass.tapped():
        for seed in range(2):
            x, v = doubles(5, 7, 4, seed=seed), [doubles(5, 3, seed=10 * seed + k) for k in range(2)]
            with onepass.listening():
                output = model(x)
                onepass.layout(5, shapes)
                visitor = MomentVisitor(onepass, totals, power)
                onepass.backward(output, [[w] for w in v], 5, visitor)
            for n, t in brute_force(model.requires_grad_(True), x, v, power).items():
                expected[n] += t
            model.requires_grad_(False)
    for n, t in expected.items():
        torch.testing.assert_close(totals[n], t)
