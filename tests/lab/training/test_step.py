"""One training step: the order of its parts, what is cut off a long gradient, and the sums of a curve."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from tests.lab.training.toys import learner
from torch.nn import functional as F

from drcl.lab.methods.base import Batch
from drcl.lab.methods.sgd import SGD
from drcl.lab.training.cost import Cost
from drcl.lab.training.samples import Look, Samples
from drcl.lab.training.step import Running, Step


def prepared(method=None, **options):
    """A step on the first task, its batch, and the sums it writes to."""
    made = learner(method)
    made.model.train()
    task = made.stream[0]
    optimizer = torch.optim.SGD(made.method.parameters(task).values(), lr=0.1)
    running, cost = Running(made.device), Cost(made.device)
    if options.pop("norms", False):
        made.at.steps = 1
        options["look"] = Look(made.method, Samples(), None, every=True)

    step = Step(made.method, optimizer, nullcontext(), running, cost, **options)
    x, y = task.train.take(slice(0, 8))
    return made, step, Batch(x, y, task.head), running, cost


def test_it_is_one_step_of_the_optimizer_on_the_mean_loss():
    made, step, batch, running, cost = prepared()
    before = {n: p.detach().clone() for n, p in made.method.parameters(made.stream[0]).items()}
    loss = F.cross_entropy(made.model(batch.x, batch.head), batch.y)
    gradients = dict(zip(before, torch.autograd.grad(loss, list(made.method.parameters(made.stream[0]).values()))))
    step(batch)
    for name, p in made.method.parameters(made.stream[0]).items():
        torch.testing.assert_close(p.detach(), before[name] - 0.1 * gradients[name])
    assert float(running.loss) == pytest.approx(loss.item())
    assert (running.steps, cost.gradient_evaluations) == (1, 1)


def test_a_long_gradient_is_scaled_down_and_the_way_is_measured():
    made, step, batch, running, _ = prepared(clip=1e-3, norms=True)
    before = [p.detach().clone() for p in made.model.parameters()]
    step(batch)
    after = [p.detach() for p in made.model.parameters()]
    way = math.sqrt(sum(float((p - q).double().square().sum()) for p, q in zip(after, before)))
    assert way == pytest.approx(0.1 * 1e-3, rel=1e-3)
    assert 0 < running.task["norm"] <= way * (1 + 1e-6)  # of the trunk alone
    assert running.task["steps"] == 1


def test_a_larger_batch_of_the_method_is_trained_on_and_not_counted():
    seen: list[int] = []

    @dataclass
    class Twice(SGD):
        name: ClassVar[str] = ""

        def before_step(self, batch):
            return batch.with_more(batch)

        def loss(self, batch):
            seen.append(len(batch))
            return super().loss(batch)

    _, step, batch, running, _ = prepared(Twice())
    step.online = True
    step(batch)
    assert seen == [16]
    assert running.images == 8  # the stream's own


def test_a_method_that_evaluates_several_times_pays_for_it():
    @dataclass
    class Thrice(SGD):
        name: ClassVar[str] = ""

        def step(self, optimizer, closure):
            for _ in range(2):
                closure()
            return super().step(optimizer, closure)

    _, step, batch, _, cost = prepared(Thrice())
    step(batch)
    assert cost.gradient_evaluations == 3


def test_a_point_of_the_curve_is_a_mean_and_begins_anew():
    running = Running(torch.device("cpu"))
    assert math.isnan(running.glance())
    for loss, hits in ((1.0, 3), (2.0, 1)):
        running.add(torch.tensor(loss), torch.tensor(hits), images=4)
    assert running.glance() == 1.5
    assert running.point() == (1.5, 0.5)
    assert running.glance() == 1.5  # the last one, until there is more
    running.add(torch.tensor(4.0), torch.tensor(4), images=4)
    kept = running.state_dict()
    again = Running(torch.device("cpu"))
    again.load_state_dict(kept)
    assert again.point() == (4.0, 1.0)
    assert again.online_accuracy() == pytest.approx(8 / 12)
    assert math.isnan(Running(torch.device("cpu")).online_accuracy())
    loss, accuracy = Running(torch.device("cpu")).point()
    assert math.isnan(loss)
    assert math.isnan(accuracy)
