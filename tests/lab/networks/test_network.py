"""The network: a trunk for any stream with the heads of its scenario, seeded, and answers of several heads."""

from __future__ import annotations

import pytest
import torch
from tests.lab.networks.toys import statistics, stream, train_task

from drcl.lab import networks


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        ("mlp", (1, 8, 8)),
        ("alexnet", (1, 28, 28)),
        ("alexnet", (3, 32, 32)),
        ("alexnet", (3, 64, 64)),
        ("alexnet", (3, 84, 84)),
        ("alexnet-gpm", (3, 32, 32)),
        ("resnet18", (1, 32, 32)),
        ("resnet18-reduced", (3, 64, 64)),
        ("cnn", (3, 32, 32)),
        ("upgd-cnn", (3, 32, 32)),
    ],
)
def test_every_trunk_gives_its_heads_what_they_expect(kind, shape):
    options = {"kind": kind, "width": 0.05} if "alexnet" in kind else {"kind": kind}
    if kind.startswith("resnet"):
        options["filters"] = 4
    network = networks.build(options, stream(shape=shape))
    x = torch.zeros(3, *shape)
    assert network.features(x, 1).shape == (3, network.heads.features)
    assert network(x, 1).shape == (3, 2)


def test_heads_follow_the_scenario():
    own = networks.build("mlp", stream("task"))
    shared = networks.build("mlp", stream("domain"))
    growing = networks.build("mlp", stream("class"))
    assert (own.heads.kind, own.heads.outputs) == ("task", (2, 2, 2))
    assert (shared.heads.kind, shared.heads.outputs) == ("shared", (2,))
    assert (growing.heads.kind, growing.heads.outputs) == ("growing", (6,))
    x = torch.randn(4, 1, 8, 8)
    assert shared(x).shape == (4, 2)
    with pytest.raises(ValueError, match="3 heads"):
        own(x)
    with pytest.raises(IndexError, match="head=3"):
        own(x, 3)


def test_groups_part_trunk_from_heads():
    network = networks.build({"kind": "mlp", "hidden": [16]}, stream())
    groups = network.groups()
    assert set(groups["trunk"]) == {"trunk.fc1.weight", "trunk.fc1.bias"}
    assert set(groups["heads"]) == {f"heads.layers.{t}.{kind}" for t in range(3) for kind in ("weight", "bias")}
    assert {**groups["trunk"], **groups["heads"]} == dict(network.named_parameters())
    assert set(network.head_parameters(2)) == {"heads.layers.2.weight", "heads.layers.2.bias"}


def test_same_seed_same_weights_and_the_global_generator_is_left_alone():
    torch.manual_seed(0)
    first = networks.build("cnn", stream(), seed=4).state_dict()
    torch.manual_seed(123)
    before = torch.get_rng_state()
    again = networks.build("cnn", stream(), seed=4).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    other = networks.build("cnn", stream(), seed=5).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["trunk.conv1.weight"], other["trunk.conv1.weight"])
    # Trunk weights do not depend on how many heads follow, nor heads on what came before them.
    wide = networks.build("cnn", stream(classes=8), seed=4).state_dict()
    assert torch.equal(first["trunk.fc1.weight"], wide["trunk.fc1.weight"])


@pytest.mark.parametrize("norm", [None, "group", "per-task"])
def test_by_head_answers_each_example_with_its_own_head(norm):
    network = networks.build({"kind": "mlp", "hidden": [6], "norm": norm}, stream()).eval()
    x, heads = torch.randn(7, 1, 8, 8), torch.tensor([2, 0, 2, 1, 0, 0, 2])
    found = network.by_head(x, heads)
    assert [rows.tolist() for rows, _ in found] == [[1, 4, 5], [3], [0, 2, 6]]
    for head, (rows, logits) in enumerate(found):
        alone = torch.cat([network(x[i : i + 1], head) for i in rows.tolist()])
        torch.testing.assert_close(logits, alone)


def test_by_head_leaves_statistics_of_tasks_that_are_not_trained_on():
    tasks = stream()
    network = networks.build({"kind": "mlp", "hidden": [6], "norm": "per-task"}, tasks)
    train_task(network, tasks[0])
    network.train()
    network.begin_task(tasks[1])
    first = statistics(network)
    x = torch.randn(9, 1, 8, 8)
    (_, old), (_, new) = network.by_head(x, torch.tensor([1] * 8 + [0]))
    second = statistics(network)
    for name in first:
        assert torch.equal(first[name][0], second[name][0])
        assert not torch.equal(first[name][1], second[name][1])
    assert all(layer.training for layer in network.modules())
    torch.testing.assert_close(old, network.eval()(x[8:], 0))
    network.train()
    torch.testing.assert_close(new, network(x[:8], 1))
    # Two tasks trained together, as joint training does: both learn their statistics.
    network.begin_task(tasks[0])
    network.by_head(x, torch.tensor([1] * 5 + [0] * 4))
    assert all(not torch.equal(second[name][:2], value[:2]) for name, value in statistics(network).items())


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="kind='alexnett'"):
        networks.build("alexnett", stream())
    with pytest.raises(TypeError, match="wdith"):
        networks.build({"kind": "mlp", "wdith": 3}, stream())
    with pytest.raises(ValueError, match="norm='layer'"):
        networks.build({"kind": "mlp", "norm": "layer"}, stream())


@pytest.mark.parametrize("channels", [1, 3])
def test_images_go_through_with_their_channels_innermost(channels):
    """Whatever the number of channels, and with the same answer as in torch's usual layout."""
    network = networks.build("cnn", stream(shape=(channels, 8, 8)))
    seen = []
    network.trunk.conv1.register_forward_hook(lambda module, given, out: seen.append(out))
    x = torch.randn(5, channels, 8, 8)
    answers = network(x[1:], 0)
    assert seen[0].is_contiguous(memory_format=torch.channels_last)
    assert not seen[0].is_contiguous()
    torch.testing.assert_close(answers, network.heads(network.trunk(x[1:]), 0))
