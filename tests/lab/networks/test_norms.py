"""Norm policies: whose statistics are written, read, frozen or absent."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from tests.lab.networks.toys import statistics, stream, train_task
from torch import nn

from drcl import DRCL
from drcl.lab import networks
from drcl.lab.networks.norms import (
    BatchNorm,
    NormPolicy,
    PerTaskBatchNorm,
    by_batch,
    judging,
    make_norm,
    select_task,
    settled,
)
from drcl.norms import POLICIES


@pytest.mark.parametrize("kind", ["cnn", "mlp"])
def test_frozen_statistics_stay_after_the_first_task(kind):
    tasks = stream()
    network = networks.build({"kind": kind, "norm": "frozen"}, tasks)
    start = statistics(network)
    train_task(network, tasks[0])
    first = statistics(network)
    assert any(not torch.equal(start[name], first[name]) for name in first if "mean" in name)
    x = tasks[0].test.take(slice(None))[0]
    network.train()
    assert torch.equal(network.features(x), network.eval().features(x))
    train_task(network, tasks[1], scale=5.0)
    assert all(torch.equal(first[name], value) for name, value in statistics(network).items())
    restored = networks.build({"kind": kind, "norm": "frozen"}, tasks)
    restored.load_state_dict(network.state_dict())
    train_task(restored, tasks[2], scale=9.0)
    assert all(torch.equal(first[name], value) for name, value in statistics(restored).items())


def test_per_task_statistics_touch_no_other_task():
    tasks = stream(shape=(3, 32, 32))
    network = networks.build({"kind": "resnet18", "filters": 4, "norm": "per-task"}, tasks)
    train_task(network, tasks[0])
    first = statistics(network)
    train_task(network, tasks[1], scale=5.0)
    second = statistics(network)
    for name in first:
        assert torch.equal(first[name][0], second[name][0])
        assert not torch.equal(first[name][1], second[name][1])
        assert torch.equal(first[name][2], second[name][2])
        assert torch.equal(second[name][2], torch.full_like(second[name][2], float("var" in name)))
    # Asking an old head after the new one uses the old statistics again.
    x = tasks[0].test.take(slice(None))[0]
    once = network(x, 0)
    network(x, 1)
    assert torch.equal(network(x, 0), once)
    with pytest.raises(ValueError, match="per-task"):
        networks.build({"kind": "resnet18", "filters": 4}, stream("domain", shape=(3, 32, 32)))


def test_per_task_row_equals_an_ordinary_batch_norm():
    ordinary, own = nn.BatchNorm2d(3), make_norm("per-task", 3, tasks=4)
    own.task = 2
    for _ in range(5):
        x = torch.randn(8, 3, 4, 4) * 3 + 1
        assert torch.allclose(ordinary(x), own(x))
    assert torch.allclose(own.task_mean[2], ordinary.running_mean)
    assert torch.allclose(own.task_var[2], ordinary.running_var)
    x = torch.randn(8, 3, 4, 4)
    assert torch.allclose(ordinary.eval()(x), own.eval()(x))


def test_shared_statistics_are_overwritten_and_batch_has_none():
    tasks = stream()
    shared = networks.build({"kind": "cnn", "norm": "shared"}, tasks)
    train_task(shared, tasks[0])
    first = statistics(shared)
    train_task(shared, tasks[1], scale=5.0)
    assert all(not torch.equal(first[name], value) for name, value in statistics(shared).items())
    batch = networks.build({"kind": "cnn", "norm": "batch"}, tasks)
    assert statistics(batch) == {}
    x = torch.randn(16, 1, 8, 8)
    assert torch.equal(batch.train().features(x), batch.eval().features(x))
    out = make_norm("batch", 4).eval()(torch.randn(64, 4) * 7 + 3)
    assert out.mean(0).abs().max() < 1e-5
    assert (out.var(0, unbiased=False) - 1).abs().max() < 1e-4


@pytest.mark.parametrize("kind", ["alexnet-gpm", "resnet18-reduced"])
def test_settled_images_are_answered_alone_as_they_were_in_their_batch(kind):
    spec = {"kind": kind, "norm": "batch"} | ({"width": 0.05} if kind == "alexnet-gpm" else {"filters": 2})
    model = networks.build(spec, stream("task", (3, 32, 32)), seed=0).eval()
    x = torch.randn(6, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    before = set(model.state_dict())
    with torch.no_grad():
        together = model(x, 0)

        def look() -> int:
            model(x, 0)
            return len(x)

        with settled(model, look):
            alone = torch.cat([model(each[None], 0) for each in x])
        again = model(x, 0)
    torch.testing.assert_close(alone, together, rtol=1e-4, atol=1e-5)
    assert torch.equal(again, together)
    assert set(model.state_dict()) == before


def test_group_norm_never_looks_at_other_examples():
    network = networks.build({"kind": "cnn", "norm": "group"}, stream())
    x = torch.randn(6, 1, 8, 8)
    together = network.features(x)
    alone = torch.cat([network.features(one[None]) for one in x])
    assert torch.allclose(together, alone, atol=1e-5)
    assert make_norm("group", 20).num_groups == 4
    assert make_norm("group", 64).num_groups == 32


@pytest.mark.parametrize("policy", ["shared", "batch", "frozen", "per-task"])
def test_a_batch_of_one_image_is_refused_in_our_words(policy):
    layer = make_norm(policy, 4).train()
    with pytest.raises(ValueError, match=r"one image .*norm=group"):
        layer(torch.randn(1, 4))
    layer(torch.randn(1, 4, 3, 3))  # a map has more than one value a channel
    make_norm("group", 64).train()(torch.randn(1, 64))
    if policy == "frozen":
        layer.end_task()
        layer(torch.randn(1, 4))


def test_judging_is_evaluation_mode_for_a_while_and_for_one_kind_of_layer():
    model = nn.Sequential(nn.Dropout(0.5), make_norm("per-task", 3, tasks=2), nn.Linear(3, 2))
    model[2].eval()
    with judging(model):
        assert not any(layer.training for layer in model.modules())
    assert [layer.training for layer in model] == [True, True, False]
    with judging(model, PerTaskBatchNorm):
        assert [layer.training for layer in model] == [True, False, False]
    with pytest.raises(RuntimeError, match="inside"), judging(model):
        raise RuntimeError("inside")
    assert [layer.training for layer in model] == [True, True, False]


@pytest.mark.parametrize("policy", ["shared", "per-task", "batch"])
def test_by_batch_normalises_as_torch_does_in_training_and_writes_nothing(policy):
    own = make_norm(policy, 3, tasks=2)
    kept = {name: b.clone() for name, b in own.named_buffers()}
    maps, flat = 2 + 3 * torch.randn(4, 3, 5, 5), torch.randn(1, 3)
    expected = nn.BatchNorm2d(3).train()(maps)
    for training in (True, False):
        own.train(training)
        with by_batch(own):
            torch.testing.assert_close(own(maps), expected)
        assert all(torch.equal(b, kept[name]) for name, b in own.named_buffers())
        assert "forward" not in vars(own)
    with by_batch(own):
        if policy == "batch":
            with pytest.raises(ValueError, match="more than 1 value"):
                own(flat)
        else:
            torch.testing.assert_close(own(flat), flat, rtol=1e-4, atol=1e-4)  # running mean 0 and variance 1
    with pytest.raises(RuntimeError, match="inside"), by_batch(own):
        raise RuntimeError("inside")
    assert "forward" not in vars(own)


def test_by_batch_leaves_frozen_and_averaged_layers_alone():
    for policy in ("frozen", "averaged"):
        own = make_norm(policy, 3)
        with by_batch(own):
            assert "forward" not in vars(own)


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="norm='layer'"):
        make_norm("layer", 4)
    with pytest.raises(ValueError, match="tasks=0"):
        make_norm("per-task", 4, tasks=0)
    with pytest.raises(IndexError, match="task 2: there are statistics for 2 tasks"):
        select_task(make_norm("per-task", 4, tasks=2), 2)


def test_the_names_are_those_of_the_library():
    assert set(POLICIES) <= set(get_args(NormPolicy))
    assert get_args(NormPolicy)[len(POLICIES) :] == ("batch", "group")  # layers without running statistics


def test_averaged_layers_are_the_librarys_own():
    """The same two tasks with the network's policy and with the optimizer's, bit for bit; also from a checkpoint."""
    tasks = stream("domain")
    ours = networks.build({"kind": "mlp", "norm": "averaged"}, tasks)
    theirs = networks.build({"kind": "mlp", "norm": "shared"}, tasks)
    optimizer = DRCL(theirs.named_parameters(), lr=0.05, strength=0.0, norms="averaged")
    train_task(ours, tasks[0])
    train_task(theirs, tasks[0])
    optimizer.consolidate(theirs, list(tasks[0].train.batches(8)))
    restored = networks.build({"kind": "mlp", "norm": "averaged"}, tasks)
    restored.load_state_dict(ours.state_dict())
    for network in (ours, theirs, restored):
        train_task(network, tasks[1], scale=5.0)
    found = [{n: v for n, v in statistics(network).items() if "running" in n} for network in (ours, theirs, restored)]
    for name, value in found[0].items():
        assert torch.equal(value, found[1][name])
        assert torch.equal(value, found[2][name])


def test_the_network_decides_with_drcl_too():
    """A frozen layer stays frozen, and a shared one shared, whatever the library's default."""
    tasks = stream("domain")
    for policy in ("frozen", "shared"):
        network = networks.build({"kind": "mlp", "norm": policy}, tasks)
        train_task(network, tasks[0])
        layer = next(m for m in network.modules() if isinstance(m, BatchNorm))
        optimizer = DRCL(network.named_parameters(), norms="shared")
        optimizer.consolidate(network, list(tasks[0].train.batches(8)))
        network.train()
        assert layer.training == (policy == "shared")
