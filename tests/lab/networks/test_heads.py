"""Heads: one per task, a shared one, and one that grows."""

from __future__ import annotations

import pytest
import torch
from tests.lab.networks.toys import stream
from torch.nn import functional as F

from drcl.lab import networks
from drcl.lab.networks import Heads


def test_growing_head_hides_unseen_classes_from_loss_gradient_and_choice():
    tasks = stream("class")
    network = networks.build({"kind": "mlp", "hidden": [16]}, tasks)
    x = torch.randn(32, 1, 8, 8)
    network.begin_task(tasks[0])
    logits = network(x)
    assert logits.shape == (32, 6)
    assert set(logits.argmax(1).tolist()) <= {0, 1}
    assert torch.softmax(logits, 1)[:, 2:].max() == 0
    y = torch.randint(0, 2, (32,))
    loss = F.cross_entropy(logits, y)
    loss.backward()
    # The same as a two-way head would give
    weight, bias = network.heads.layers[0].weight, network.heads.layers[0].bias
    two_way = F.linear(network.features(x), weight[:2], bias[:2])
    assert torch.allclose(loss, F.cross_entropy(two_way, y))
    assert weight.grad[2:].abs().max() == 0
    assert weight.grad[:2].abs().max() > 0
    assert torch.isfinite(F.log_softmax(logits, 1)).all()
    network.begin_task(tasks[1])
    assert network.heads.seen.tolist() == [True] * 4 + [False] * 2
    assert torch.equal(network(x)[:, :2], logits[:, :2])


def test_heads_grow_and_keep_their_bits():
    heads = Heads(5, [3], "growing")
    heads.see([0, 1, 2])
    features = torch.randn(4, 5)
    before = heads(features)
    old = heads.layers[0]
    heads.grow(2, seed=1)
    assert heads.outputs == (5,)
    assert torch.equal(heads.layers[0].weight[:3], old.weight)
    assert torch.equal(heads.layers[0].bias[:3], old.bias)
    assert torch.allclose(heads(features)[:, :3], before)
    assert heads.seen.tolist() == [True, True, True, False, False]
    per_task = Heads(5, [3], "task")
    first = per_task(features, 0)
    per_task.grow(4)
    assert per_task(features, 1).shape == (4, 4)
    assert torch.equal(per_task(features, 0), first)
    with pytest.raises(ValueError, match="shared"):
        Heads(5, [3], "shared").grow(1)
    with pytest.raises(ValueError, match="labels up to 9"):
        heads.see([9])


def test_which_head_is_meant():
    several, one = Heads(5, [3, 2], "task"), Heads(5, [3], "shared")
    assert (len(several), several.outputs) == (2, (3, 2))
    assert (several.index(1), one.index(None)) == (1, 0)
    with pytest.raises(ValueError, match="2 heads"):
        several.index(None)
    for wrong in (-1, 2):
        with pytest.raises(IndexError, match=f"head={wrong}"):
            several.index(wrong)


@pytest.mark.parametrize(
    ("outputs", "kind", "message"),
    [
        ([], "task", "outputs="),
        ([3, 0], "task", "outputs="),
        ([3, 3], "shared", "exactly one head"),
        ([3, 3], "growing", "exactly one head"),
        ([3], "other", "kind='other'"),
    ],
)
def test_bad_arguments_are_named(outputs, kind, message):
    with pytest.raises(ValueError, match=message):
        Heads(4, outputs, kind)
