"""Named benchmarks: the table is complete and valid, and every stream has the counts it promises."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.lab.benchmarks.expected import EXPECTED, empty

from drcl.lab import benchmarks

PAPER = {
    *("cifar100-10", "cifar100-20", "tinyimagenet-20", "imagenet-100", "celeba-20", "emnist-20"),
    *("emnist-labels", "cifar10-permuted", "tinyimagenet-labels", "cub-20", "casia-100"),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_streams_and_networks_are_as_promised(name):
    tasks, classes, scenario, known, shape = EXPECTED[name]
    one = benchmarks.get(name)
    assert (one.tasks, one.classes, one.scenario) == (tasks, classes, scenario)
    # Enough for 20 shares in emnist-20 with one image of each class to validate on
    per_class = 1300 if name == "emnist-20" else 400 if name == "celeba-20" else 4
    data = empty(known, shape, per_class, attributes=name == "celeba-20")
    stream = one.stream(seed=0, data=[data] * 5 if name == "five-datasets" else data)
    assert len(stream) == tasks
    assert stream.scenario == scenario
    assert stream.heads == (classes,) * (tasks if scenario == "task" else 1)
    assert stream.online == one.online
    for task in (stream[0], stream[tasks - 1]):
        assert len(task.classes) == len(task.labels) == classes
        assert set(task.test.labels.tolist()) == set(task.labels)
        if one.online:
            assert len(task.train) == one.steps * one.batch
    if name == "emnist-20":
        counts = [np.bincount(part.labels).tolist() for part in (stream[3].train, stream[3].valid, stream[3].test)]
        assert counts == [[50] * 62, [5] * 62, [10] * 62]
    size = one.pixels.get("size", shape[1]) + 2 * one.pixels.get("pad", 0)
    assert stream.shape == (one.pixels.get("channels", shape[0]), size, size)
    network = one.network(stream, seed=0).eval()
    network.begin_task(stream[0])
    x, y = next(iter(stream[0].test.batches(2)))
    assert network(x, stream[0].head).shape == (2, classes)
    assert y.max() < classes


def test_the_spg_suite_has_its_counts():
    """450/50 images per class of 500, and 1,000/100 of ImageNet's, as published."""
    cifar = benchmarks.get("cifar100-10").stream(seed=1, data=empty(100, (3, 32, 32), 500))
    assert np.bincount(cifar[4].train.labels).tolist() == [450] * 10
    assert np.bincount(cifar[4].valid.labels).tolist() == [50] * 10
    imagenet = benchmarks.get("imagenet-100").stream(seed=1, data=empty(1000, (3, 32, 32), 1300))
    assert np.bincount(imagenet[99].train.labels).tolist() == [1000] * 10
    assert np.bincount(imagenet[99].valid.labels).tolist() == [100] * 10


def test_superclasses_hold_every_class_once():
    groups = benchmarks.get("cifar100-superclass").arguments["groups"]
    assert [len(group) for group in groups] == [5] * 20
    assert sorted(c for group in groups for c in group) == list(range(100))


def test_paper_benchmarks_state_their_reading():
    assert {name for name in benchmarks.names() if benchmarks.get(name).reading} == PAPER


def test_limit_and_tasks():
    one = benchmarks.get("cifar100-10")
    data = empty(100, (3, 32, 32), 50)
    full = one.stream(seed=0, data=data)
    part = one.stream(seed=0, data=data, limit_per_class=10, tasks=3)
    assert len(part) == 3
    assert [task.classes for task in part] == [task.classes for task in full[:3]]
    for task in part:
        assert np.bincount(task.train.labels).tolist() == [9] * 10
        assert np.bincount(task.valid.labels).tolist() == [1] * 10
        assert np.bincount(task.test.labels).tolist() == [10] * 10
    with pytest.raises(ValueError, match="tasks=11"):
        one.stream(seed=0, data=data, tasks=11)


@pytest.mark.parametrize(
    ("override", "word"),
    [
        ({"epoch": 3}, "did you mean 'epochs'"),
        ({"epochs": 0}, "epochs=0"),
        ({"epochs": True}, "epochs=True"),
        ({"steps": 5, "epochs": 2}, "give either epochs or steps"),
        ({"steps": 2.5}, "steps=2.5"),
        ({"lr": -1.0}, "lr=-1.0"),
        ({"momentum": 1.0}, "momentum=1.0"),
        ({"builder": "split"}, "builder='split'"),
        ({"scenario": "online"}, "scenario='online'"),
        ({"schedule": "step"}, "schedule='step'"),
        ({"model": "alexnett"}, "alexnett"),
        ({"pixels": {"sise": 3}}, "sise"),
        ({"data": ["mnist"]}, "chain"),
        ({"valid": 1.5}, "valid=1.5"),
        ({"batch": 1.5}, "batch=1.5"),
    ],
)
def test_bad_settings_are_named(override, word):
    with pytest.raises(ValueError, match=word):
        benchmarks.get("mnist-split", **override)


def test_superclass_comments_name_what_the_ids_are():
    """CIFAR-100's fine names are in alphabetical order, so the names in the comments must sort by their
    ids."""
    from importlib import resources

    text = resources.files("drcl.lab.benchmarks").joinpath("benchmarks.toml").read_text()
    named: dict[int, str] = {}
    for line in text.splitlines():
        if line.startswith("    [") and "#" in line:
            ids, comment = line.split("#")
            numbers = [int(n) for n in ids.strip(" [],").split(",")]
            words = [word.strip().replace(" ", "_") for word in comment.split(":")[1].split(",")]
            named.update(zip(numbers, words, strict=True))
    assert len(named) == 100
    assert [named[i] for i in range(100)] == sorted(named.values())


def test_digits_permuted_forgets_without_protection():
    """Plain SGD over the default settings, fewer tasks: the last task is learned, the first is lost."""
    one = benchmarks.get("digits-permuted")
    stream = one.stream(seed=0, tasks=3)
    network = one.network(stream, seed=0)
    torch.manual_seed(0)
    for task in stream:
        optimizer = torch.optim.SGD(network.parameters(), lr=one.lr, momentum=one.momentum)
        for epoch in range(one.epochs):
            for x, y in task.train.batches(one.batch, epoch=epoch):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(network(x, task.head), y).backward()
                optimizer.step()
    accuracy = []
    for task in stream:
        x, y = task.test.take(slice(None))
        accuracy.append((network(x, task.head).argmax(1) == y).float().mean().item())
    assert accuracy[-1] > 0.9
    assert accuracy[0] < 0.7


@pytest.mark.parametrize("key", ["root", "name", "path", "bogus"])
def test_an_option_of_a_data_set_that_it_does_not_have_is_refused_in_words(key):
    with pytest.raises(ValueError, match=f"digits has no option '{key}'"):
        benchmarks.get("digits-split", options={key: "x"}).load()


@pytest.mark.parametrize("key", ["seed", "tasks", "view", "data", "bogus"])
def test_an_argument_that_is_given_elsewhere_or_unknown_is_refused_in_words(key):
    with pytest.raises(ValueError, match=f"{key} is not one of class-split; it has classes_per_task, groups"):
        benchmarks.get("digits-split", arguments={"classes_per_task": 2, key: 1})
