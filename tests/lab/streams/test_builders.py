"""Builders: what each task contains, against counts worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.lab.streams.toys import numbers, toy

from drcl.lab import streams
from drcl.lab.common import seeds
from drcl.lab.data.base import DataSet, Split
from drcl.lab.streams.view import View


def test_class_split_is_disjoint_and_complete():
    data = toy()
    stream = streams.class_split(data, seed=3, classes_per_task=2, valid=0.1)
    classes = [c for task in stream for c in task.classes]
    assert sorted(classes) == list(range(10))
    for part in ("valid", "test"):
        rows = [r for task in stream for r in numbers(getattr(task, part))]
        assert len(rows) == len(set(rows)) == {"valid": 20, "test": 50}[part]
    train = [r for task in stream for r in numbers(task.train)]
    valid = [r for task in stream for r in numbers(task.valid)]
    assert sorted(train + valid) == list(range(200))
    for task in stream:
        assert (len(task.train), len(task.valid), len(task.test)) == (36, 4, 10)
        for part in (task.train, task.valid, task.test):
            original = (data.test if part is task.test else data.train).labels[part.rows]
            assert [task.classes[label] for label in part.labels] == original.tolist()
        assert np.bincount(task.valid.labels).tolist() == [2, 2]
        assert task.class_names == tuple(f"class {c}" for c in task.classes)


def test_leftover_classes_are_left_out_and_groups_are_kept_together():
    stream = streams.class_split(toy(classes=10), seed=0, classes_per_task=3)
    assert len(stream) == 3
    assert sum(len(task.train) for task in stream) == 180
    groups = [[0, 9], [4, 5, 6], [1]]
    grouped = streams.class_split(toy(), seed=5, groups=groups)
    assert sorted(task.classes for task in grouped) == sorted(map(tuple, groups))
    assert sorted(grouped.heads) == [1, 2, 3]
    plain = streams.class_split(toy(), seed=5, groups=groups, shuffle=False)
    assert [task.classes for task in plain] == [(0, 9), (4, 5, 6), (1,)]


@pytest.mark.parametrize(
    ("how", "word"),
    [
        ({"classes_per_task": 11}, "classes_per_task=11"),
        ({}, "exactly one"),
        ({"classes_per_task": 2, "tasks": 6}, "tasks=6"),
        ({"groups": [[0, 1], [1, 2]]}, "once"),
        ({"classes_per_task": 2, "scenario": "tasks"}, "scenario"),
        ({"classes_per_task": 2, "valid": 1.0}, "valid=1.0"),
        ({"classes_per_task": 2, "limit_per_class": 0}, "limit_per_class=0"),
        ({"groups": [[0, 1], [2]], "scenario": "domain"}, "the same number of classes"),
    ],
)
def test_bad_arguments_are_named(how, word):
    with pytest.raises(ValueError, match=word):
        streams.class_split(toy(), seed=0, **how)


def test_same_seed_same_stream_whatever_was_called_before():
    def fingerprint(seed: int) -> list:
        stream = streams.class_split(toy(), seed=seed, classes_per_task=2, valid=0.2, limit_per_class=7)
        return [(t.classes, numbers(t.train), numbers(t.valid), numbers(t.test)) for t in stream]

    first = fingerprint(7)
    np.random.seed(1)  # noqa: NPY002 - the global generator is what must not matter
    torch.manual_seed(1)
    assert fingerprint(7) == first
    assert fingerprint(8) != first


def test_global_generators_are_left_alone():
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()  # noqa: NPY002
    for task in streams.permuted_inputs(toy(), seed=0, tasks=3, view=View(crop=1, flip=True)):
        list(task.train.batches(16))
    list(streams.online(toy(), seed=0, tasks=2, steps=3))
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert np.array_equal(np.random.get_state()[1], numpy_state[1])  # noqa: NPY002


def test_permuted_inputs_use_one_order_for_all_parts_and_lose_no_pixel():
    data = toy()
    stream = streams.permuted_inputs(data, seed=2, tasks=3, valid=0.1)
    assert stream.heads == (10,)
    assert np.array_equal(stream[0].test.images, data.test.images)
    orders = []
    for task in list(stream)[1:]:
        order = task.train.view.permutation
        assert sorted(order.tolist()) == list(range(64))
        for part, source in ((task.train, data.train), (task.valid, data.train), (task.test, data.test)):
            expected = source.images[part.rows].reshape(-1, 64)[:, order]
            assert np.array_equal(part.images.reshape(-1, 64), expected)
        orders.append(order)
    assert not np.array_equal(*orders)
    # Lazy: no task owns a copy of the images.
    assert all(task.train.source is data.train.images for task in stream)
    own_heads = streams.permuted_inputs(data, seed=2, tasks=3, scenario="task")
    assert own_heads.heads == (10, 10, 10)
    with pytest.raises(ValueError, match="class"):
        streams.permuted_inputs(data, seed=2, tasks=3, scenario="class")


def test_all_channels_are_permuted_together():
    data = toy(shape=(3, 8, 8))
    task = streams.permuted_inputs(data, seed=0, tasks=2)[1]
    assert sorted(task.train.view.permutation.tolist()) == list(range(192))


def test_label_permutations_compose():
    tables = streams.label_permutations(5, 7, seed=4)
    assert tables[0].tolist() == list(range(7))
    for t in range(1, 5):
        change = seeds.permutation(7, 4, "labels", t)
        assert [int(change[tables[t - 1][c]]) for c in range(7)] == tables[t].tolist()
    stream = streams.permuted_labels(toy(classes=7), seed=4, tasks=5)
    for task, table in zip(stream, tables):
        for part, source in ((task.train, 20), (task.test, 5)):
            assert part.labels.tolist() == [int(table[c]) for c in np.tile(np.arange(7), source)]
        assert [int(table[c]) for c in task.classes] == list(range(7))
    assert stream.heads == (7,) * 5


def test_rotation_by_quarter_turns_is_exact():
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (6, 1, 8, 8), dtype=np.uint8)
    data = DataSet("random", Split(images, np.zeros(6, np.int64)), Split(images, np.zeros(6, np.int64)), ("one",))
    stream = streams.rotated_inputs(data, seed=0, tasks=4, span=360.0)
    for quarter, task in enumerate(stream):
        assert np.array_equal(task.test.images, np.rot90(images, quarter, axes=(2, 3)))


def test_attributes_take_the_most_even_ones():
    rng = np.random.default_rng(0)
    count = 100
    labels = np.zeros((count, 5), np.int64)
    for column, positives in enumerate((50, 3, 60, 99, 45)):
        labels[rng.permutation(count)[:positives], column] = 1
    images = np.zeros((count, 3, 4, 4), np.uint8)
    names = ("smiling", "bald", "young", "face", "hat")
    data = DataSet("faces", Split(images, labels), Split(images, labels), names)
    stream = streams.attributes(data, seed=1, tasks=3, valid=0.2)
    assert {task.name for task in stream} == {"smiling", "young", "hat"}
    assert stream.heads == (2, 2, 2)
    for task in stream:
        column = names.index(task.name)
        assert task.classes == (0, 1)
        assert task.class_names == (f"not {task.name}", task.name)
        assert task.test.labels.tolist() == labels[:, column].tolist()
        assert task.train.labels.tolist() == labels[task.train.rows, column].tolist()
        assert (len(task.train), len(task.valid)) == (80, 20)
    chosen = streams.attributes(data, seed=1, tasks=2, choose=["face", "bald"])
    assert [task.name for task in chosen] == ["face", "bald"]
    with pytest.raises(ValueError, match="attributes"):
        streams.attributes(toy(), seed=0, tasks=2)
    with pytest.raises(ValueError, match="tasks=6"):
        streams.attributes(data, seed=0, tasks=6)


def test_shards_are_even_disjoint_and_complete():
    data = toy(classes=3, train=40, test=12)
    stream = streams.shards(data, seed=0, tasks=4, valid=0.1)
    for part, total, each in (("train", 108, 9), ("valid", 12, 1), ("test", 36, 3)):
        rows = [r for task in stream for r in numbers(getattr(task, part))]
        assert len(rows) == len(set(rows)) == total
        for task in stream:
            assert np.bincount(getattr(task, part).labels).tolist() == [each] * 3
    assert stream.heads == (3,) * 4
    small = streams.shards(data, seed=0, tasks=4, limit_per_class=5, test_per_class=2, valid=0.2)
    for task in small:
        assert np.bincount(task.train.labels).tolist() == [4, 4, 4]
        assert np.bincount(task.valid.labels).tolist() == [1, 1, 1]
        assert np.bincount(task.test.labels).tolist() == [2, 2, 2]


def test_shards_by_group_keep_a_writer_together():
    data = toy(classes=3, train=40, test=12, groups=8)
    stream = streams.shards(data, seed=0, tasks=4, by="group")
    homes: dict[int, int] = {}
    for task in stream:
        for part, source in ((task.train, data.train), (task.test, data.test)):
            for writer in source.groups[part.rows].tolist():
                assert homes.setdefault(writer, task.index) == task.index
    assert sorted(homes) == list(range(8))
    assert sum(len(task.train) for task in stream) == 120
    with pytest.raises(ValueError, match='by="class"'):
        streams.shards(toy(), seed=0, tasks=2, by="group")


def test_chain_brings_sets_to_one_shape():
    grey = toy(classes=4, name="grey")
    colour = toy(classes=3, name="colour", shape=(3, 32, 32))
    stream = streams.chain([grey, colour], seed=0, size=32, channels=3, valid=0.1)
    assert [task.name for task in stream] == ["grey", "colour"]
    assert stream.heads == (4, 3)
    assert [task.head for task in stream] == [0, 1]
    for task in stream:
        assert task.train.shape == stream.shape == (3, 32, 32)
        assert next(iter(task.train.batches(5)))[0].shape == (5, 3, 32, 32)
    images = stream[0].test.images
    assert np.array_equal(images[:, 0], images[:, 1])
    assert np.array_equal(images[:, 0], images[:, 2])
    growing = streams.chain([grey, colour], seed=0, scenario="class", classes_per_task=2)
    assert growing.heads == (4,)
    assert sorted(set(growing[1].train.labels.tolist())) == [2, 3]
    with pytest.raises(ValueError, match="the same number of classes"):
        streams.chain([grey, colour], seed=0, scenario="domain")
