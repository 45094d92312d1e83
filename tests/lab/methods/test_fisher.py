"""Importance from a task's own data: by definition, on the examples that were drawn, and counted as what it costs."""

from __future__ import annotations

import pytest
import torch
from tests.lab.methods.loop import Walk, toy_stream
from torch.nn import functional as F

from drcl.importance import Fisher
from drcl.lab.methods import _fisher
from drcl.lab.methods.sgd import SGD


def built():
    stream = toy_stream()
    return Walk(SGD(), stream), stream[0]


def test_how_many_examples_are_looked_at():
    _, task = built()
    assert len(task.train) == 24
    assert [_fisher.number_of(samples, task) for samples in (None, 5, 24, 1000)] == [24, 5, 24, 24]


@pytest.mark.parametrize("count", [5, 24])
def test_it_is_the_mean_squared_gradient_of_the_examples_drawn(count):
    walk, task = built()
    own = walk.model.groups()["trunk"]
    estimator = Fisher(samples=count, labels="empirical")
    found = _fisher.estimate(walk.method, estimator, task, own, count, "word")
    walk.model.eval()
    examples = [(x[i : i + 1], y[i : i + 1]) for x, y in walk.method.sample(task, count, "word") for i in range(len(y))]
    assert len(examples) == count
    total = {name: torch.zeros_like(p) for name, p in own.items()}
    for x, y in examples:
        grads = torch.autograd.grad(F.cross_entropy(walk.model(x, task.head), y), list(own.values()))
        for name, g in zip(own, grads, strict=True):
            total[name] += g.square() / count
    for name, value in total.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-9)
    assert walk.method.gradients == -(-count // walk.setting.batch)


def test_the_diagonal_is_drawn_anew_for_another_word_and_the_same_for_the_same():
    walk, task = built()
    own = walk.model.groups()["trunk"]

    def diagonal(word):
        return _fisher.diagonal(walk.method, task, own, 6, "sampled", word)

    first, again, other = diagonal("a"), diagonal("a"), diagonal("b")
    assert all(torch.equal(first[name], again[name]) for name in own)
    assert not all(torch.equal(first[name], other[name]) for name in own)
