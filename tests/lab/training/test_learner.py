"""The loop against one written by hand, and the rules it keeps for every method."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from tests.lab.training.toys import PLAN, blobs, learner, stream, weights
from torch.nn import functional as F

from drcl.lab import networks, streams
from drcl.lab.common import seeds
from drcl.lab.methods.sgd import SGD
from drcl.lab.training.budget import Plan
from drcl.lab.training.events import Watcher
from drcl.lab.training.learner import Learner


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_one_task_equals_a_loop_by_hand(schedule, optimizer):
    one = stream(tasks=1)
    plan = Plan(epochs=3, batch=7, lr=0.05, momentum=0.9, schedule=schedule)
    made = learner(on=one, plan=plan, optimizer=optimizer, model={"dropout": 0.5})
    model = networks.build({"kind": "mlp", "hidden": [6], "dropout": 0.5}, one, seed=5)
    made.run()
    if optimizer == "sgd":
        by_hand: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    else:
        by_hand = torch.optim.Adam(model.parameters(), lr=0.05)
    torch.manual_seed(seeds.derive(7, "torch", 0))
    step, steps = 0, 3 * math.ceil(48 / 7)
    model.train()
    for epoch in range(3):
        for x, y in one[0].train.batches(7, seed=seeds.derive(7, "training"), epoch=epoch):
            if schedule == "cosine":
                by_hand.param_groups[0]["lr"] = 0.05 * 0.5 * (1 + math.cos(math.pi * step / steps))
            by_hand.zero_grad()
            F.cross_entropy(model(x, 0), y).backward()
            by_hand.step()
            step += 1
    assert step == steps
    for name, value in model.state_dict().items():
        assert torch.equal(made.model.state_dict()[name], value), name
    x, y = one[0].test.take(slice(None))
    model.eval()
    assert made.matrix == [[float((model(x, 0).argmax(1) == y).double().mean())]]
    assert made.cost.gradient_evaluations == steps


def test_a_length_in_steps_cuts_the_last_epoch():
    made = learner(on=stream(tasks=1), plan=Plan(epochs=None, steps=10, batch=8, lr=0.1))
    made.run()
    assert made.cost.gradient_evaluations == 10  # an epoch has 6
    assert not math.isnan(made.after_one_epoch[0])


def test_the_heads_of_other_tasks_do_not_move():
    on = stream(tasks=3)
    seen: list[dict[str, torch.Tensor]] = []

    class Look(Watcher):
        def row(self, task, accuracies):
            seen.append(weights(made.model))

    made = learner(on=on, watcher=Look(), optimizer="adamw", weight_decay=0.1)
    start = weights(made.model)
    made.run()
    for task, now in enumerate(seen):
        before = seen[task - 1] if task else start
        for name, value in now.items():
            own = name.startswith(("trunk.", f"heads.layers.{task}."))
            assert torch.equal(value, before[name]) != own, (task, name)


def test_every_task_has_a_fresh_optimizer():
    made_with: list[dict] = []

    @dataclass
    class Note(SGD):
        name: ClassVar[str] = ""

        def optimizer(self, task):
            made = super().optimizer(task)
            made_with.append({"state": dict(made.state), "count": sum(len(g["params"]) for g in made.param_groups)})
            return made

    learner(Note()).run()
    assert made_with == [{"state": {}, "count": 4}] * 2  # trunk and own head: two tensors each


def test_hooks_come_in_the_order_methods_rely_on():
    calls: list[str] = []
    names = ("build", "before_task", "before_stage", "optimizer", "before_step", "loss", "after_backward", "after_step")
    names += ("after_task", "predict")

    @dataclass
    class Note(SGD):
        name: ClassVar[str] = ""
        stages: ClassVar[int] = 2

    for name in names:

        def hook(self, *arguments, _name=name, **more):
            calls.append(_name)
            training = self.model.training if hasattr(self, "model") else None
            if _name in ("loss", "after_backward"):
                assert training is True
                assert all((p.grad is None) == (_name == "loss") for p in self.parameters(self.task).values())
            if _name in ("predict", "after_task"):
                assert training is False
            if _name == "before_task":
                self.task = arguments[0]
            return getattr(SGD, _name)(self, *arguments, **more)

        setattr(Note, name, hook)
    made = learner(Note(), stream(tasks=2), Plan(epochs=1, batch=24, lr=0.1), first_epoch=False)
    made.run()
    step = ["before_step", "loss", "after_backward", "after_step"]
    # The loss of the first and of the newest task is looked at before the first step and after each epoch.
    one, two = ["predict"], ["predict", "predict"]
    expected = ["build"]
    for look in (one, two):
        first = ["before_stage", "optimizer", *look, *step, *step, *look]
        second = ["before_stage", "optimizer", *step, *step, *look]
        expected += ["before_task", *first, *second, "after_task", *look]
    assert calls == expected


def test_the_matrix_is_measured_on_every_seen_test_set():
    on = stream(tasks=3)
    made = learner(on=on)
    made.run()
    R = np.array(made.matrix)
    assert np.isnan(R[np.triu_indices(3, 1)]).all()
    made.model.eval()
    for j, task in enumerate(on):
        x, y = task.test.take(slice(None))
        assert R[2, j] == float((made.model(x, task.head).argmax(1) == y).double().mean())
    assert np.diag(R).min() > 0.8


def test_class_incremental_answers_with_classes_met_so_far():
    made = learner(on=stream("class"), plan=Plan(epochs=8, batch=8, lr=0.1, momentum=0.9))
    made.run()
    assert made.matrix[0][0] > 0.9
    assert made.matrix[1][0] < 0.5 < made.matrix[1][1]  # fine-tuning keeps the newest classes only


def test_online_accuracy_is_taken_before_the_update():
    data = blobs(2, train=30)
    on = streams.online(data, seed=2, tasks=2, steps=12, batch=3, permute="labels", scenario="domain")
    plan = Plan(epochs=None, steps=12, batch=3, lr=0.1)
    made = learner(on=on, plan=plan)
    made.run()
    model = networks.build({"kind": "mlp", "hidden": [6]}, on, seed=5)
    by_hand = torch.optim.SGD(model.parameters(), lr=0.1)
    for index, task in enumerate(on):
        hits = 0
        for x, y in task.train.batches(3, shuffle=False):
            logits = model(x)
            hits += int((logits.argmax(1) == y).sum())
            by_hand.zero_grad()
            F.cross_entropy(logits, y).backward()
            by_hand.step()
        assert made.online[index] == hits / 36
    assert np.isnan(made.matrix[0][1])
    assert not np.isnan(made.matrix[1]).any()


def test_the_first_epochs_accuracy_is_measured_after_exactly_one():
    made, single = learner(plan=PLAN), learner(plan=Plan(epochs=1, batch=8, lr=0.1, momentum=0.9))
    made.run()
    single.run()
    assert made.after_one_epoch[0] == single.matrix[0][0] == single.after_one_epoch[0]


def test_a_later_learning_rate_and_a_clip():
    frozen = learner(later_lr=1e-30)
    frozen.run()
    assert frozen.drifts[0]["unmoved"] == 1.0
    rates: list[float] = []

    class Look(Watcher):
        def log(self, values, step):
            if "lr" in values:
                rates.append(values["lr"])

    made = learner(watcher=Look(), later_lr=0.01, clip=1e-3, log_every=6)
    made.run()
    assert rates == [0.1, 0.1, 0.01, 0.01]
    # steps of lr * clip at most, ten times that with momentum 0.9, twelve of them
    assert made.drifts[0]["stiffness"] < 12 * 0.01 * 1e-3 * 10


def test_the_same_seed_gives_the_same_bits_and_another_other_ones():
    def final(seed: int):
        on = stream()
        model = networks.build({"kind": "mlp", "hidden": [6], "dropout": 0.5}, on, seed=5)
        made = Learner(on, model, SGD(), PLAN, seed=seed)
        made.run()
        return made.model.state_dict()["trunk.fc1.weight"]

    assert torch.equal(final(1), final(1))
    assert not torch.equal(final(1), final(2))


def test_half_precision_trains():
    made = learner(precision="bf16", plan=Plan(epochs=6, batch=8, lr=0.1, momentum=0.9))
    made.run()
    assert all(p.dtype == torch.float32 for p in made.model.parameters())
    assert made.matrix[0][0] > 0.8
