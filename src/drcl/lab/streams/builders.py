"""The ways to make a stream from a data set. Each is one function, and its draws depend only on its
seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from drcl.lab.common import seeds
from drcl.lab.data.base import DataSet
from drcl.lab.streams.assembly import own_heads, shared_stream, shared_task, stream_of, task_of
from drcl.lab.streams.examples import Examples
from drcl.lab.streams.parts import class_ranks, split_parts
from drcl.lab.streams.task import Scenario, Stream, Task
from drcl.lab.streams.view import View


def class_split(
    data: DataSet,
    *,
    seed: int,
    classes_per_task: int | None = None,
    tasks: int | None = None,
    groups: Sequence[Sequence[int]] | None = None,
    shuffle: bool = True,
    scenario: Scenario = "task",
    **parts: Any,
) -> Stream:
    """Each task has its own classes. Classes come in an order shuffled by `seed`, `classes_per_task` at a
    time; remaining classes are left out. Alternatively, `groups` names the classes of each task, and
    `seed` shuffles the groups. ``shuffle=False`` keeps the data set's order."""
    known = len(data.classes)
    if (groups is None) == (classes_per_task is None):
        raise ValueError(f"classes_per_task={classes_per_task}, groups={groups}: give exactly one of the two")
    if groups is not None:
        order = seeds.permutation(len(groups), seed, "groups") if shuffle else np.arange(len(groups))
        chosen = [tuple(int(c) for c in groups[g]) for g in order.tolist()]
        flat = [c for group in chosen for c in group]
        if len(set(flat)) != len(flat) or not all(0 <= c < known for c in flat):
            raise ValueError(f"groups: each class id must occur once and lie in 0..{known - 1}")
    else:
        assert classes_per_task is not None
        if not 1 <= classes_per_task <= known:
            raise ValueError(f"classes_per_task={classes_per_task}: {data.name} has {known} classes")
        order = seeds.permutation(known, seed, "classes") if shuffle else np.arange(known)
        whole = known // classes_per_task
        chosen = [tuple(row) for row in order[: whole * classes_per_task].reshape(whole, -1).tolist()]
    if tasks is not None:
        if not 1 <= tasks <= len(chosen):
            raise ValueError(f"tasks={tasks}: the classes of {data.name} make {len(chosen)} tasks at most")
        chosen = chosen[:tasks]
    cut = split_parts(data, seed=seed, **parts)
    sizes = [len(classes) for classes in chosen]
    heads = own_heads(sizes, scenario)
    starts = np.cumsum([0, *sizes]).tolist()

    def make(index: int) -> Task:
        classes = chosen[index]
        offset = starts[index] if scenario == "class" else 0
        labels = tuple(range(offset, offset + len(classes)))
        table = np.full(known, -1, np.int64)
        table[list(classes)] = labels
        three = [_relabelled(part, table) for part in cut.three()]
        return task_of(cut, index, three, classes, labels, scenario)

    return stream_of(cut, "classes", make, len(chosen), scenario, heads, seed)


def permuted_inputs(
    data: DataSet,
    *,
    seed: int,
    tasks: int,
    identity_first: bool = True,
    scenario: Scenario = "domain",
    **parts: Any,
) -> Stream:
    """Every task is the whole problem with its pixels (of all channels together) in another fixed order."""
    cut = split_parts(data, seed=seed, **parts)
    pixels = int(np.prod(cut.train.shape))

    def make(index: int) -> Task:
        order = None if identity_first and index == 0 else seeds.permutation(pixels, seed, "inputs", index)
        three = [part.with_view(replace(part.view, permutation=order)) for part in cut.three()]
        return shared_task(cut, index, three, scenario)

    return shared_stream(cut, "permuted inputs", make, tasks, scenario, seed)


def rotated_inputs(
    data: DataSet,
    *,
    seed: int,
    tasks: int,
    span: float = 180.0,
    scenario: Scenario = "domain",
    **parts: Any,
) -> Stream:
    """Task ``t`` of ``T`` is the whole problem rotated by ``t * span / T`` degrees."""
    cut = split_parts(data, seed=seed, **parts)

    def make(index: int) -> Task:
        angle = index * span / tasks
        three = [part.with_view(replace(part.view, rotation=angle)) for part in cut.three()]
        return shared_task(cut, index, three, scenario, name=f"{data.name} rotated by {angle:g} degrees")

    return shared_stream(cut, "rotated inputs", make, tasks, scenario, seed)


def permuted_labels(data: DataSet, *, seed: int, tasks: int, scenario: Scenario = "task", **parts: Any) -> Stream:
    """Every task is the whole problem with its labels renamed; task 0 keeps them."""
    cut = split_parts(data, seed=seed, **parts)
    tables = label_permutations(tasks, len(data.classes), seed)

    def make(index: int) -> Task:
        three = [part.with_labels(tables[index][part.labels]) for part in cut.three()]
        # classes[label] is the class that label now stands for: the inverse of the renaming.
        return shared_task(cut, index, three, scenario, classes=np.argsort(tables[index]))

    return shared_stream(cut, "permuted labels", make, tasks, scenario, seed)


def label_permutations(tasks: int, classes: int, seed: int) -> np.ndarray:
    """Row ``t`` says which label each class has in task ``t``: the labels of task ``t-1``, permuted once
    more."""
    tables = np.empty((tasks, classes), np.int64)
    tables[:1] = np.arange(classes)
    for t in range(1, tasks):
        tables[t] = seeds.permutation(classes, seed, "labels", t)[tables[t - 1]]
    return tables


def attributes(
    data: DataSet,
    *,
    seed: int,
    tasks: int,
    choose: Sequence[str] | None = None,
    scenario: Scenario = "task",
    **parts: Any,
) -> Stream:
    """One yes-or-no attribute per task: label 1 where an image has it. `choose` names the attributes in
    their order. By default they are those whose two answers are most evenly spread over the training
    images, in an order shuffled by `seed`."""
    if data.train.labels.ndim != 2:
        raise ValueError(f"{data.name} has classes, not attributes: use class_split, or a set such as celeba")
    if choose is not None:
        missing = [name for name in choose if name not in data.classes]
        if missing or len(choose) < tasks:
            raise ValueError(f"choose={list(choose)}: {tasks} of {', '.join(data.classes)} are wanted")
        columns = [data.classes.index(name) for name in choose[:tasks]]
    else:
        if not 1 <= tasks <= len(data.classes):
            raise ValueError(f"tasks={tasks}: {data.name} has {len(data.classes)} attributes")
        # Whole numbers, so that no rounding decides between two attributes.
        uneven = np.abs(2 * data.train.labels.astype(np.int64).sum(0) - len(data.train))
        even = np.sort(np.argsort(uneven, kind="stable")[:tasks])
        columns = even[seeds.permutation(tasks, seed, "attributes")].tolist()
    cut = split_parts(data, seed=seed, **parts)

    def make(index: int) -> Task:
        column = columns[index]
        name = data.classes[column]
        three = [part.with_labels(part.labels[:, column]) for part in cut.three()]
        return shared_task(cut, index, three, scenario, classes=(0, 1), names=(f"not {name}", name), name=name)

    return shared_stream(cut, "attributes", make, tasks, scenario, seed, width=2)


def shards(
    data: DataSet,
    *,
    seed: int,
    tasks: int,
    by: str = "class",
    limit_per_class: int | None = None,
    test_per_class: int | None = None,
    scenario: Scenario = "task",
    **parts: Any,
) -> Stream:
    """Every task is a share of one problem, with all its classes. ``by="class"`` distributes each class
    evenly (near-i.i.d. tasks); ``by="group"`` keeps a writer, celebrity or drawer in one task. The limits
    count examples of a class in one task."""
    if by not in ("class", "group"):
        raise ValueError(f'by={by!r}: deal examples out by "class" or by "group"')
    cut = split_parts(
        data,
        seed=seed,
        limit_per_class=limit_per_class and limit_per_class * tasks,
        test_per_class=test_per_class and test_per_class * tasks,
        **parts,
    )
    dealt: list[np.ndarray] = []
    homes = None if by == "class" else _group_homes(data, tasks, seed)
    for word, part in zip(("train", "valid", "test"), cut.three()):
        if homes is None:
            rank, count = class_ranks(part.labels, seed, "shards", word)
            dealt.append(rank * tasks // count)
        else:
            dealt.append(homes[_groups_of(data, part)])

    def make(index: int) -> Task:
        three = [part.subset(home == index) for part, home in zip(cut.three(), dealt)]
        return shared_task(cut, index, three, scenario)

    return shared_stream(cut, "shards", make, tasks, scenario, seed)


def chain(
    data: Sequence[DataSet],
    *,
    seed: int,
    classes_per_task: int | None = None,
    shuffle: bool = False,
    size: int = 32,
    channels: int = 3,
    view: View | None = None,
    scenario: Scenario = "task",
    **parts: Any,
) -> Stream:
    """One data set per task, all resized to `channels` x `size` x `size`. `classes_per_task` takes that
    many classes of each, drawn by `seed`; `shuffle` shuffles the order of the sets."""
    sets = list(data)
    if shuffle:
        sets = [sets[i] for i in seeds.permutation(len(sets), seed, "chain")]
    seen = replace(view or View(), size=size, channels=channels)
    streams = []
    for number, one in enumerate(sets):
        width = min(classes_per_task or len(one.classes), len(one.classes))
        inner = seeds.derive(seed, "chain", number)
        streams.append(class_split(one, seed=inner, classes_per_task=width, tasks=1, view=seen, **parts))
    sizes = [stream.heads[0] for stream in streams]
    heads = own_heads(sizes, scenario)
    starts = np.cumsum([0, *sizes]).tolist()

    def make(index: int) -> Task:
        task = streams[index][0]
        offset = starts[index] if scenario == "class" else 0
        three = (task.train, task.valid, task.test)
        train, valid, test = (part.with_labels(part.labels + offset).with_key(index) for part in three)
        return replace(
            task,
            index=index,
            name=sets[index].name,
            train=train,
            valid=valid,
            test=test,
            labels=tuple(label + offset for label in task.labels),
            head=index if scenario == "task" else 0,
            scenario=scenario,
        )

    name = "chain of " + ", ".join(one.name for one in sets)
    return Stream(name, make, len(sets), scenario=scenario, heads=heads, shape=streams[0].shape, seed=seed)


def _relabelled(part: Examples, table: np.ndarray) -> Examples:
    labels = table[part.labels]
    return part.with_labels(labels).subset(labels >= 0)


def _group_homes(data: DataSet, tasks: int, seed: int) -> np.ndarray:
    """For each group id, its task. Groups are dealt out in turn after a shuffle."""
    found = [split.groups for split in (data.train, data.valid, data.test) if split is not None]
    if any(groups is None for groups in found):
        raise ValueError(f'by="group": {data.name} does not say who wrote or drew what; use by="class"')
    known = np.unique(np.concatenate([np.asarray(groups) for groups in found]))
    if len(known) < tasks:
        raise ValueError(f"tasks={tasks}: {data.name} has only {len(known)} groups to deal out")
    homes = np.zeros(int(known.max()) + 1, np.int64)
    homes[known[seeds.permutation(len(known), seed, "groups")]] = np.arange(len(known)) % tasks
    return homes


def _groups_of(data: DataSet, part: Examples) -> np.ndarray:
    for split in (data.train, data.valid, data.test):
        if split is not None and split.images is part.source:
            return np.asarray(split.groups)[part.rows]
    raise AssertionError("examples come from one of the data set's splits")
