"""Builders: what each task contains, against counts worked out by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drcl.lab import streams
from drcl.lab.common import seeds
from drcl.lab.data.base import DataSet, Split
from drcl.lab.streams.online import draws
from drcl.lab.streams.parts import split_parts
from drcl.lab.streams.view import View


def split(per_class: int, classes: int, shape=(1, 8, 8), offset: int = 0, groups: int | None = None) -> Split:
    """Image i is filled with pixels that encode i, so that every image can be told from its bytes."""
    count = per_class * classes
    numbers = np.arange(count) + offset
    images = np.zeros((count, *shape), np.uint8)
    images[:, 0, 0, 0] = numbers % 251
    images[:, 0, 0, 1] = numbers // 251
    images[:, 0, 1:] = np.arange(7 * 8).reshape(7, 8) if shape == (1, 8, 8) else 9
    labels = np.tile(np.arange(classes), per_class)
    return Split(images, labels, None if groups is None else numbers % groups)


def toy(classes: int = 10, train: int = 20, test: int = 5, name: str = "toy", **how) -> DataSet:
    names = tuple(f"class {c}" for c in range(classes))
    return DataSet(name, split(train, classes, **how), split(test, classes, offset=30_000, **how), names)


def numbers(examples) -> list[int]:
    """The original row numbers of examples, in order."""
    return examples.rows.tolist()


def test_stream_is_an_immutable_sequence():
    stream = streams.class_split(toy(), seed=0, classes_per_task=2)
    assert len(stream) == 5
    assert [task.index for task in stream] == [0, 1, 2, 3, 4]
    part = stream[1:4]
    assert isinstance(part, streams.Stream)
    assert [task.index for task in part] == [1, 2, 3]
    assert part[0] is stream[1]
    assert stream[-1] is stream[4]
    assert part[::-1][0].index == 3
    assert part.heads == stream.heads == (2, 2, 2, 2, 2)
    with pytest.raises(IndexError):
        part[3]
    with pytest.raises(TypeError):
        stream[0] = stream[1]


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


def test_scenarios_number_labels_and_heads():
    data = toy(classes=6)
    own = streams.class_split(data, seed=1, classes_per_task=2, scenario="task")
    shared = streams.class_split(data, seed=1, classes_per_task=2, scenario="domain")
    growing = streams.class_split(data, seed=1, classes_per_task=2, scenario="class")
    assert [task.head for task in own] == [0, 1, 2]
    assert [task.head for task in shared] == [task.head for task in growing] == [0, 0, 0]
    assert (own.heads, shared.heads, growing.heads) == ((2, 2, 2), (2,), (6,))
    assert [task.labels for task in own] == [(0, 1)] * 3
    assert [task.labels for task in growing] == [(0, 1), (2, 3), (4, 5)]
    assert [sorted(set(task.test.labels.tolist())) for task in growing] == [[0, 1], [2, 3], [4, 5]]
    assert [task.classes for task in own] == [task.classes for task in growing]
    assert {task.scenario for task in growing} == {"class"}


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
        ({"groups": [[0, 1], [2]], "scenario": "domain"}, "as many classes"),
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


def test_random_words_are_the_documented_generator():
    """PCG64 seeded by the SHA-256 of the path: recomputed here in the open, so it can be rebuilt anywhere."""
    import hashlib

    digest = hashlib.sha256(b"5\0s:order\0i:3").digest()
    generator = np.random.PCG64(np.random.SeedSequence(int.from_bytes(digest, "little")))
    expected = generator.random_raw(10)
    assert np.array_equal(seeds.words(10, 5, "order", 3), expected)
    assert np.array_equal(seeds.words(4, 5, "order", 3, skip=6), expected[6:])
    assert seeds.permutation(10, 5, "order", 3).tolist() == sorted(range(10), key=lambda i: expected[i])
    assert seeds.derive(5, "order", 3) == int.from_bytes(digest[:8], "little") // 2
    # A word and a number never share a path.
    assert seeds.derive(5, "3") != seeds.derive(5, 3)


def test_permutations_are_uniform():
    """All 24 orders of four things, 4,800 draws: chi-square with 23 degrees of freedom stays below its
    99.9 % point."""
    counts = dict.fromkeys(itertools.permutations(range(4)), 0)
    for i in range(4800):
        counts[tuple(seeds.permutation(4, i, "test").tolist())] += 1
    assert sum((n - 200) ** 2 / 200 for n in counts.values()) < 49.73


@settings(max_examples=30, deadline=None)
@given(
    counts=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    share=st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9]),
    limit=st.one_of(st.none(), st.integers(1, 30)),
    seed=st.integers(0, 5),
)
def test_validation_is_stratified_for_any_class_sizes(counts, share, limit, seed):
    labels = np.repeat(np.arange(len(counts)), counts)
    images = np.zeros((len(labels), 1, 2, 2), np.uint8)
    data = DataSet("any", Split(images, labels), Split(images, labels), tuple(map(str, range(len(counts)))))
    cut = split_parts(data, seed=seed, valid=share, limit_per_class=limit)
    assert not set(numbers(cut.train)) & set(numbers(cut.valid))
    for c, count in enumerate(counts):
        kept = count if limit is None else min(count, limit)
        valid = int((cut.valid.labels == c).sum())
        assert valid + int((cut.train.labels == c).sum()) == kept
        assert int((cut.test.labels == c).sum()) == kept
        if share == 0:
            assert valid == 0
        elif kept > 1:
            assert 1 <= valid <= kept - 1
            assert abs(valid - share * kept) <= 0.5 or valid in (1, kept - 1)
        else:
            assert valid == 0


def test_official_validation_is_used_and_training_left_whole():
    base = toy()
    data = DataSet("own", base.train, base.test, base.classes, valid=split(3, 10, offset=20_000))
    task = streams.class_split(data, seed=0, classes_per_task=10, valid=0.5)[0]
    assert (len(task.train), len(task.valid), len(task.test)) == (200, 30, 50)
    assert task.valid.source is data.valid.images


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


def test_online_stream_draws_afresh_and_composes():
    data = toy(classes=7)  # 140 training images
    stream = streams.online(data, seed=4, tasks=4, steps=30, batch=3)
    assert stream.online
    assert stream.heads == (7,)
    tables = streams.label_permutations(4, 7, seed=4)
    seen = []
    for task, table in zip(stream, tables):
        assert task.online
        batches = list(task.train.batches(3))
        assert len(batches) == 30
        rows = numbers(task.train)
        assert len(set(rows)) == 90
        assert task.train.labels.tolist() == [int(table[row % 7]) for row in rows]
        assert task.test.labels.tolist() == [int(table[c]) for c in np.tile(np.arange(7), 5)]
        seen.append(tuple(rows))
    assert len(set(seen)) == 4


def test_online_draws_start_over_when_data_run_out():
    drawn = draws(10, 25, seed=0, task=3)
    assert len(drawn) == 25
    assert sorted(drawn[:10]) == sorted(drawn[10:20]) == list(range(10))
    assert len(set(drawn[20:].tolist())) == 5


def test_online_inputs_keep_the_labels():
    data = toy(classes=4)
    stream = streams.online(data, seed=0, tasks=3, steps=5, permute="inputs")
    for task in stream:
        order = task.test.view.permutation
        assert np.array_equal(task.test.images.reshape(-1, 64), data.test.images.reshape(-1, 64)[:, order])
        assert task.test.labels.tolist() == data.test.labels.tolist()
    with pytest.raises(ValueError, match="permute='pixels'"):
        streams.online(data, seed=0, tasks=3, steps=5, permute="pixels")


def test_rotation_by_quarter_turns_is_exact():
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (6, 1, 8, 8), dtype=np.uint8)
    data = DataSet("random", Split(images, np.zeros(6, np.int64)), Split(images, np.zeros(6, np.int64)), ("one",))
    stream = streams.rotated_inputs(data, seed=0, tasks=4, span=360.0)
    for quarter, task in enumerate(stream):
        assert np.array_equal(task.test.images, np.rot90(images, quarter, axes=(2, 3)))


def test_rotation_agrees_with_scipy_inside_the_image():
    from scipy import ndimage

    ramp = np.add.outer(np.arange(28) * 3, np.arange(28) * 4).astype(np.uint8)  # at most 189
    images = ramp[None, None]
    data = DataSet("ramp", Split(images, np.zeros(1, np.int64)), Split(images, np.zeros(1, np.int64)), ("one",))
    task = streams.rotated_inputs(data, seed=0, tasks=10)[1]  # 18 degrees
    expected = ndimage.rotate(ramp.astype(float), 18, reshape=False, order=1)
    inner = slice(6, 22)
    difference = task.train.images[0, 0].astype(float) - expected
    assert np.abs(difference[inner, inner]).max() <= 1.0


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
    with pytest.raises(ValueError, match="as many classes"):
        streams.chain([grey, colour], seed=0, scenario="domain")
