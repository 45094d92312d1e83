"""Replay: the reservoir is uniform, examples keep label and head, and old heads learn from memory alone."""

from __future__ import annotations

import pytest
import torch
from tests.lab.methods.loop import KINDS, Walk, assert_resumes, assert_same_weights, toy_stream, weights

from drcl.lab import methods, networks
from drcl.lab.methods.base import Batch, Setting
from drcl.lab.methods.er import ER


@pytest.mark.parametrize("kind", KINDS)
def test_examples_keep_their_label_and_head(kind):
    stream = toy_stream()
    method = ER(memory=1000)
    sizes = []
    walk = Walk(method, stream, kind).run(lambda moment, batch: sizes.append(len(batch)))
    memory = method.state["memory"]
    assert memory["offered"] == sum(len(task.train) for task in stream)  # once each, though there were two epochs
    held = list(zip(memory["x"], memory["y"].tolist(), memory["head"].tolist(), strict=True))[: memory["offered"]]
    for task in stream:
        x, y = task.train.take(slice(None))
        mine = {(image.numpy().tobytes(), label) for image, label, head in held if head == task.head}
        assert mine == {(image.numpy().tobytes(), int(label)) for image, label in zip(x, y, strict=True)}
    assert sizes[0] == 8  # nothing to replay yet
    assert max(sizes) == 16
    assert [len(row) for row in walk.accuracy] == [1, 2, 3]


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_is_the_mean_over_both(kind):
    stream = toy_stream()
    method = ER(memory=50, replay=5)
    checked = []

    def watch(moment, batch):
        if moment != "backward" or method.at.task != 2:
            return
        assert len(batch) == 8 + 5
        assert (batch.heads()[:8] == 2).all()
        with torch.no_grad():
            each = [
                torch.nn.functional.cross_entropy(
                    walk.model(batch.x[i : i + 1], int(batch.heads()[i])), batch.y[i : i + 1]
                )
                for i in range(len(batch))
            ]
            assert float(method.loss(batch)) == pytest.approx(float(torch.stack(each).mean()), rel=1e-5)
        checked.append(set(batch.heads()[8:].tolist()))

    walk = Walk(method, stream, kind)
    walk.run(watch)
    assert set.union(*checked) == {0, 1, 2}


def test_old_heads_move_only_when_replayed():
    stream = toy_stream()
    with_replay = Walk(ER(memory=60), stream)
    before = []

    def watch(moment, batch):
        if moment == "backward" and with_replay.method.at.task == 1 and with_replay.method.at.step == 0:
            before.append(weights(with_replay.model))

    with_replay.run(watch)
    head = "heads.layers.0.weight"
    assert not torch.equal(before[0][head], weights(with_replay.model)[head])
    assert with_replay.accuracy[-1][0] >= 0.9  # remembered


@pytest.mark.parametrize("scenario", ["domain", "class"])
def test_shared_heads(scenario):
    walk = Walk(ER(memory=60), toy_stream(scenario)).run()
    assert set(walk.method.state["memory"]["head"].tolist()) == {0}
    assert len(walk.accuracy[-1]) == 3


def test_statistics_of_earlier_tasks_are_final():
    """One replayed example of an old task: its own statistics normalise it and stay as they were."""
    stream = toy_stream()
    model = networks.build({"kind": "mlp", "hidden": [6], "norm": "per-task"}, stream)
    method = ER()
    method.build(model, Setting("task", 3, stream.heads, stream.shape, 0, 0.1, 0.0, 8))
    x, y = stream[0].train.take(slice(0, 9))
    for task in stream[:2]:
        model.begin_task(task)
        method.before_task(task)
        model.train()
        model(task.train.take(slice(0, 9))[0], task.head)
        if task.index == 0:
            model.end_task(task)
    batch = Batch(x, y, torch.tensor([1] * 8 + [0]))
    norm = model.trunk.norm1
    before = norm.task_mean.clone()
    loss = method.loss(batch)
    assert torch.equal(norm.task_mean[0], before[0])
    assert not torch.equal(norm.task_mean[1], before[1])
    assert norm.training
    entropy = torch.nn.functional.cross_entropy
    with torch.no_grad():
        current = entropy(model(x[:8], 1), y[:8], reduction="sum")
        model.eval()
        old = entropy(model(x[8:], 0), y[8:])
    assert loss.item() == pytest.approx((current.item() + old.item()) / 9, rel=1e-5)


def test_the_first_step_is_plain():
    """Until something is remembered nothing differs from fine-tuning."""
    stream = toy_stream(per_class=4)[:1]  # one batch
    a, b = Walk(ER(), stream, epochs=1).run(), Walk(methods.get("sgd")(), stream, epochs=1).run()
    assert_same_weights(a.model, b.model)


@pytest.mark.parametrize("kind", [*KINDS, {"kind": "mlp", "hidden": [6], "norm": "per-task"}], ids=str)
def test_resume(kind):
    assert_resumes(lambda: ER(memory=12), kind)


def test_state_is_the_memory():
    method = ER(memory=20)
    Walk(method, toy_stream(), epochs=1).run()
    assert method.state_bytes() == 20 * (64 * 4 + 8 + 8)


@pytest.mark.parametrize("wrong", [{"memory": 0}, {"memory": -3}, {"replay": 0}])
def test_bad_values_are_named(wrong):
    (key,) = wrong
    with pytest.raises(ValueError, match=f"er: {key}="):
        methods.get("er")(**wrong)
