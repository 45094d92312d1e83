"""The loop against one written by hand, and the rules it keeps for every method."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from drcl.lab import networks, streams
from drcl.lab.common import seeds
from drcl.lab.data.base import DataSet, Split
from drcl.lab.methods.base import Batch, Method
from drcl.lab.methods.joint import Joint
from drcl.lab.methods.sgd import SGD
from drcl.lab.training.events import Event, Watcher
from drcl.lab.training.learner import Learner
from drcl.lab.training.mixture import Mixture
from drcl.lab.training.settings import Plan, Training

PLAN = Plan(epochs=2, batch=8, lr=0.1, momentum=0.9)


def blobs(classes: int = 4, train: int = 24, test: int = 10, seed: int = 0) -> DataSet:
    """Images of a class are noise about a pattern of its own: easy, and learned in a few steps."""
    rng = np.random.default_rng(seed)
    patterns = rng.integers(40, 215, (classes, 1, 4, 4))

    def split(count: int) -> Split:
        labels = np.tile(np.arange(classes), count)
        images = np.clip(patterns[labels] + rng.normal(0, 12, (len(labels), 1, 4, 4)), 0, 255).astype(np.uint8)
        return Split(images, labels)

    return DataSet("blobs", split(train), split(test), tuple(map(str, range(classes))))


def stream(scenario: str = "task", tasks: int = 2, **options) -> streams.Stream:
    return streams.class_split(blobs(2 * tasks), seed=1, classes_per_task=2, scenario=scenario, **options)


def learner(method: Method | None = None, on: streams.Stream | None = None, plan: Plan = PLAN, **options) -> Learner:
    on = on or stream()
    model = networks.build({"kind": "mlp", "hidden": [6], **options.pop("model", {})}, on, seed=5)
    watcher = options.pop("watcher", None)
    return Learner(on, model, method or SGD(), plan, Training(**options), seed=7, watcher=watcher)


def weights(model) -> dict[str, torch.Tensor]:
    return {name: t.clone() for name, t in model.state_dict().items()}


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
    stage = ["before_stage", "optimizer", *step, *step]
    expected = ["build", "before_task", *stage, *stage, "after_task", "predict"]
    expected += ["before_task", *stage, *stage, "after_task", "predict", "predict"]
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


def test_unseen_tasks_and_the_untrained_network_on_request():
    made = learner(evaluate_unseen=True)
    untrained = networks.build({"kind": "mlp", "hidden": [6]}, made.stream, seed=5).eval()
    made.run()
    assert not np.isnan(made.matrix).any()
    for j, task in enumerate(made.stream):
        x, y = task.test.take(slice(None))
        assert made.untrained is not None
        assert made.untrained[j] == float((untrained(x, j).argmax(1) == y).double().mean())
    growing = learner(on=stream("class"), evaluate_unseen=True)
    growing.run()
    assert math.isnan(growing.matrix[0][1])  # classes it has not met cannot be answered


def test_ends_measures_the_diagonal_and_the_last_row():
    made = learner(on=stream(tasks=4), evaluate="ends")
    made.run()
    there = ~np.isnan(np.array(made.matrix))
    assert there.tolist() == [[i == j or i == 3 for j in range(4)] for i in range(4)]


def test_class_incremental_answers_with_classes_met_so_far():
    made = learner(on=stream("class"), plan=Plan(epochs=8, batch=8, lr=0.1, momentum=0.9))
    made.run()
    assert made.matrix[0][0] > 0.9
    assert made.matrix[1][0] < 0.5 < made.matrix[1][1]  # fine-tuning keeps the newest classes only


def test_joint_is_no_worse_than_fine_tuning_and_trains_all_heads_at_once():
    on = stream("class", tasks=3)
    plan = Plan(epochs=20, batch=8, lr=0.05, momentum=0.9)
    together, tuned = learner(Joint(), on, plan), learner(SGD(), on, plan)
    together.run()
    tuned.run()
    assert np.mean(together.matrix[-1]) > 0.9 > np.mean(tuned.matrix[-1])
    assert np.isnan(together.matrix[:-1]).all()
    assert together.cost.gradient_evaluations == 20 * math.ceil(3 * 48 / 8)
    heads = learner(Joint(), stream(tasks=3), plan)
    start = weights(heads.model)
    heads.run()
    assert np.mean(heads.matrix[-1]) > 0.9
    assert not any(torch.equal(start[name], value) for name, value in heads.model.state_dict().items())


def test_a_mixture_holds_every_example_once_with_its_own_head():
    on = stream(tasks=3)
    data = Mixture(list(on), 7, seed=3)
    batches = list(data.epoch(0))
    assert len(batches) == data.batches == math.ceil(3 * 48 / 7)
    rows = sorted((int(h), int(y), x.numpy().tobytes()) for b in batches for x, y, h in zip(b.x, b.y, b.heads()))
    wanted = []
    for task in on:
        x, y = task.train.take(slice(None))
        wanted += [(task.head, int(label), image.numpy().tobytes()) for image, label in zip(x, y)]
    assert rows == sorted(wanted)
    again = list(data.epoch(0, start=11))
    assert len(again) == len(batches) - 11
    for a, b in zip(batches[11:], again):
        assert torch.equal(a.x, b.x)
        assert torch.equal(a.heads(), b.heads())
    assert not torch.equal(next(data.epoch(1)).x, batches[0].x)


def test_a_mixed_batch_is_scored_by_each_examples_own_head():
    on = stream(tasks=3)
    made = learner(on=on)
    batch = next(Mixture(list(on), 16, seed=0).epoch(0))
    singles = [batch.rows(slice(i, i + 1)) for i in range(16)]
    one_by_one = [F.cross_entropy(made.model(b.x, int(b.heads()[0])), b.y).detach() for b in singles]
    found = float(made.method.loss(batch).detach())
    assert found == pytest.approx(float(torch.stack(one_by_one).mean()), rel=1e-5)
    both = Batch(batch.x, batch.y, 1).with_more(Batch(batch.x, batch.y, 2))
    assert both.heads().tolist() == [1] * 16 + [2] * 16
    assert Batch(batch.x, batch.y, 1).with_more(Batch(batch.x, batch.y, 1)).head == 1
    part = both.rows(slice(15, 18))
    assert part.heads().tolist() == [1, 2, 2]
    assert len(part) == 3


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


def test_drift_compares_the_trunk_before_and_after_each_task():
    states: list[dict[str, torch.Tensor]] = []
    rows: list = []

    class Look(Watcher):
        def drift(self, found):
            rows.extend(found)
            states.append(weights(made.model))

    made = learner(on=stream(tasks=3), watcher=Look(), step_norms=True)
    states.append(weights(made.model))
    made.run()
    for task in range(3):
        old = torch.cat([states[task][f"trunk.fc1.{n}"].flatten() for n in ("weight", "bias")]).double()
        new = torch.cat([states[task + 1][f"trunk.fc1.{n}"].flatten() for n in ("weight", "bias")]).double()
        row = rows[task]
        assert (row.task, row.layer, row.weights) == (task, "fc1", 16 * 6 + 6)
        assert row.unmoved == float((old == new).double().mean())
        assert row.mean_change == pytest.approx(float((old - new).abs().mean()))
        assert row.largest_change == pytest.approx(float((old - new).abs().max()))
        assert row.relative_change == pytest.approx(float((old - new).norm() / old.norm()))
        if task:
            assert made.drifts[task - 1]["stiffness"] == pytest.approx(float((old - new).norm()))
            small = ((old - new).abs() < 0.05 * old.abs()) | (old == new)
            assert made.drifts[task - 1]["effective_stability"] == float(small.double().mean())
    assert len(made.drifts) == 2
    assert len(made.step_norms) == 3


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


def test_the_callers_world_is_left_alone():
    torch.manual_seed(11)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    learner(threads=1, model={"dropout": 0.5}).run()
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads
    assert not torch.are_deterministic_algorithms_enabled()


def test_the_same_seed_gives_the_same_bits_and_another_other_ones():
    def final(seed: int):
        on = stream()
        model = networks.build({"kind": "mlp", "hidden": [6], "dropout": 0.5}, on, seed=5)
        made = Learner(on, model, SGD(), PLAN, seed=seed)
        made.run()
        return made.model.state_dict()["trunk.fc1.weight"]

    assert torch.equal(final(1), final(1))
    assert not torch.equal(final(1), final(2))


def test_events_count_and_time_goes_forward():
    events: list[Event] = []

    class Look(Watcher):
        def event(self, event):
            events.append(event)

    learner(watcher=Look()).run()
    assert [(e.kind, e.task) for e in events if e.kind not in ("step", "finish")] == [
        (kind, task) for task in (0, 1) for kind in ("task", "epoch", "epoch", "consolidation", "evaluation")
    ]
    last = events[-1]
    assert (last.kind, last.tasks) == ("finish", 2)
    assert last.average_accuracy is not None
    assert [(e.epoch, e.epochs, e.step, e.steps) for e in events if e.kind == "epoch"] == [
        (0, 2, 6, 12),
        (1, 2, 12, 12),
    ] * 2
    seconds = [e.seconds for e in events]
    assert seconds == sorted(seconds)


def test_devices_that_are_not_there_are_refused():
    with pytest.raises(ValueError, match="device='gpu'"):
        learner(device="gpu")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="no CUDA device"):
            learner(device="cuda")
    learner(device="auto")


def test_half_precision_trains():
    made = learner(precision="bf16", plan=Plan(epochs=6, batch=8, lr=0.1, momentum=0.9))
    made.run()
    assert all(p.dtype == torch.float32 for p in made.model.parameters())
    assert made.matrix[0][0] > 0.8


def test_an_empty_task_is_refused():
    task = stream()[0]
    with pytest.raises(ValueError, match="no training examples"):
        Mixture([replace(task, train=task.train.subset(np.arange(0)))], 8, seed=0)
