"""Networks: parameter counts of the literature, heads, norm policies, seeding."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from drcl.lab import networks, streams
from drcl.lab.data.base import DataSet, Split
from drcl.lab.networks import Heads, Network, count_parameters
from drcl.lab.networks.norms import make_norm, settled


def stream(scenario="task", shape=(1, 8, 8), classes=6, per_task=2) -> streams.Stream:
    rng = np.random.default_rng(0)
    labels = np.tile(np.arange(classes), 8)
    part = Split(rng.integers(0, 256, (len(labels), *shape), dtype=np.uint8), labels)
    data = DataSet("toy", part, part, tuple(map(str, range(classes))))
    return streams.class_split(data, seed=0, classes_per_task=per_task, scenario=scenario)


@pytest.mark.parametrize(
    ("trunk", "expected"),
    [
        (networks.AlexNet((3, 32, 32)), 6_503_872),
        (networks.AlexNet((1, 28, 28)), 6_460_416),
        (networks.AlexNet((3, 64, 64)), 17_744_320),
        # 84 px: kernels 10, 8, 2; maps 75-37, 30-15, 14-7
        (
            networks.AlexNet((3, 84, 84)),
            (300 * 64 + 64)
            + (64 * 64 * 128 + 128)
            + (4 * 128 * 256 + 256)
            + (49 * 256 * 2048 + 2048)
            + (2048**2 + 2048),
        ),
        # No biases, and two affine parameters for each of the 64 + 128 + 256 + 2048 + 2048 units
        (networks.AlexNetGPM((3, 32, 32)), 6_503_872 - 4544 + 2 * 4544),
        (networks.ResNet18((3, 32, 32)), 11_168_832),
        (networks.ReducedResNet18((3, 32, 32)), 1_093_140),
        # The 7x7 stem instead of the 3x3 one
        (networks.ResNet18((3, 64, 64)), 11_168_832 + 64 * 3 * (49 - 9)),
        (networks.MLP((1, 28, 28), hidden=(300, 150)), 784 * 300 + 300 + 300 * 150 + 150),
        # conv 6 and 16 of 5x5, then 400-120-84
        (networks.UPGDNet((3, 32, 32)), 456 + 2416 + 48_120 + 10_164),
        (
            networks.SmallCNN((1, 8, 8)),
            (9 * 32 + 32) + (9 * 32 * 64 + 64) + (9 * 64 * 64 + 64) + (64 * 128 + 128),
        ),
    ],
    ids=["hat32", "hat28", "hat64", "hat84", "gpm32", "resnet", "reduced", "resnet64", "mlp", "upgd", "cnn"],
)
def test_parameter_counts(trunk, expected):
    assert count_parameters(trunk) == expected


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


def test_resnet_stem_follows_the_image_size():
    small, large = networks.ResNet18((3, 32, 32), filters=4), networks.ResNet18((3, 64, 64), filters=4)
    assert (small.stem, large.stem) == ("small", "standard")
    assert small.conv1.kernel_size == (3, 3)
    assert isinstance(small.pool1, nn.Identity)
    assert large.conv1.kernel_size == (7, 7)
    assert networks.ResNet18((3, 64, 64), filters=4, stem="small").conv1.stride == (1, 1)
    # 32 -> 32, 16, 8, 4 through the stages; 64 -> 16, 16, 8, 4, 2
    norms = {"norm": "group"}
    maps = networks.ResNet18((3, 32, 32), filters=4, **norms)
    assert maps.stages(maps.conv1(torch.zeros(1, 3, 32, 32))).shape == (1, 32, 4, 4)
    assert networks.ReducedResNet18((3, 32, 32), pool=2).out_features == 640


def test_alexnet_width_dropout_and_order_of_layers():
    half = networks.AlexNet((3, 32, 32), width=0.5, conv_dropout=0.1, dropout=0.3)
    assert [layer.out_channels for layer in half.modules() if isinstance(layer, nn.Conv2d)] == [32, 64, 128]
    assert half.out_features == 1024
    assert [layer.p for layer in half.modules() if isinstance(layer, nn.Dropout)] == [0.1, 0.1, 0.1, 0.3, 0.3]
    gpm = networks.AlexNetGPM((3, 32, 32), width=0.1)
    kinds = [type(layer).__name__ for layer in gpm]
    assert kinds[:5] == ["Conv2d", "BatchNorm", "ReLU", "Dropout", "MaxPool2d"]
    assert all(layer.bias is None for layer in gpm.modules() if isinstance(layer, nn.Conv2d | nn.Linear))
    assert not list(gpm.buffers())
    with pytest.raises(ValueError, match="20 pixels"):
        networks.AlexNet((1, 8, 8))


def test_upgd_net_has_no_nonlinearity_between_convolutions():
    kinds = [type(layer).__name__ for layer in networks.UPGDNet((3, 32, 32))]
    assert kinds == [
        "Conv2d",
        "MaxPool2d",
        "Conv2d",
        "MaxPool2d",
        "Flatten",
        "Linear",
        "ReLU",
        "Linear",
        "ReLU",
    ]


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


def train_task(network: Network, task: streams.Task, steps: int = 3, scale: float = 1.0) -> None:
    network.train()
    network.begin_task(task)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
    for x, y in list(task.train.batches(8))[:steps]:
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(network(x * scale + 1, task.head), y).backward()
        optimizer.step()
    network.end_task(task)
    network.eval()


def statistics(network: Network) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in network.named_buffers() if "num_batches" not in name}


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


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="kind='alexnett'"):
        networks.build("alexnett", stream())
    with pytest.raises(TypeError, match="wdith"):
        networks.build({"kind": "mlp", "wdith": 3}, stream())
    with pytest.raises(ValueError, match="norm='layer'"):
        networks.build({"kind": "mlp", "norm": "layer"}, stream())
    with pytest.raises(ValueError, match="hidden="):
        networks.MLP((1, 8, 8), hidden=())
    with pytest.raises(ValueError, match="norm=None"):
        networks.ResNet18((3, 32, 32), norm=None)
    with pytest.raises(ValueError, match="outputs="):
        Heads(4, [], "task")


@pytest.mark.parametrize("policy", ["shared", "batch", "frozen", "per-task"])
def test_a_batch_of_one_image_is_refused_in_our_words(policy):
    layer = make_norm(policy, 4).train()
    with pytest.raises(ValueError, match=r"one image .*norm=group"):
        layer(torch.randn(1, 4))
    layer(torch.randn(1, 4, 3, 3))  # a map has more than one value a channel
    make_norm("group", 64).train()(torch.randn(1, 64))
    if policy == "frozen":
        layer.freeze()
        layer(torch.randn(1, 4))


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
