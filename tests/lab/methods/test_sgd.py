"""Fine-tuning: a plain loop over the tasks, and nothing kept from one to the next."""

from __future__ import annotations

import torch
from tests.lab.methods.loop import Walk, toy_stream, weights
from torch.nn import functional as F

from drcl.lab.methods.sgd import SGD


def test_it_is_a_loop_by_hand():
    stream = toy_stream()
    walk, twin = Walk(SGD(), stream, epochs=1), Walk(SGD(), stream, epochs=1)
    walk.run()
    model = twin.model
    for task in stream:
        own = [*model.groups()["trunk"].values(), *model.head_parameters(task.head).values()]
        optimizer = torch.optim.SGD(own, lr=0.05, momentum=0.9)
        for x, y in task.train.batches(8, seed=0, epoch=0):
            model.zero_grad(set_to_none=True)
            F.cross_entropy(model(x, task.head), y).backward()
            optimizer.step()
    by_hand = weights(model)
    assert all(torch.equal(p, by_hand[name]) for name, p in weights(walk.model).items())


def test_it_keeps_nothing():
    walk = Walk(SGD(), toy_stream(), epochs=1).run()
    assert walk.method.state == {}
    assert walk.method.state_bytes() == 0
    assert walk.method.gradients == 0
