"""The last step of every builder: combine parts of a data set into a task, and tasks into a stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, get_args

import numpy as np

from drcl.lab.streams.examples import Examples
from drcl.lab.streams.parts import Parts
from drcl.lab.streams.task import Scenario, Stream, Task


def own_heads(sizes: list[int], scenario: Scenario) -> list[int]:
    """Outputs of each head, for tasks with their own classes."""
    if scenario == "task":
        return sizes
    if scenario == "class":
        return [sum(sizes)]
    if scenario != "domain":
        raise ValueError(f"scenario={scenario!r}: choose one of {', '.join(get_args(Scenario))}")
    if len(set(sizes)) > 1:
        raise ValueError(f'scenario="domain": one head needs the same number of classes in each task, not {sizes}')
    return sizes[:1]


def task_of(
    cut: Parts,
    index: int,
    three: Sequence[Examples],
    classes: Sequence[int] | np.ndarray,
    labels: tuple[int, ...],
    scenario: Scenario,
    *,
    names: Sequence[str] | None = None,
    name: str | None = None,
    online: bool = False,
) -> Task:
    """A task of these three parts, whose labels stand for these classes of the data set."""
    ids = tuple(int(c) for c in classes)
    train, valid, test = (part.with_key(index) for part in three)
    return Task(
        index=index,
        name=name or f"{cut.name} {index + 1}",
        train=train,
        valid=valid,
        test=test,
        classes=ids,
        class_names=tuple(names or (cut.classes[c] for c in ids)),
        labels=labels,
        head=index if scenario == "task" else 0,
        scenario=scenario,
        online=online,
    )


def shared_task(
    cut: Parts,
    index: int,
    three: Sequence[Examples],
    scenario: Scenario,
    *,
    classes: Sequence[int] | np.ndarray | None = None,
    names: Sequence[str] | None = None,
    name: str | None = None,
    online: bool = False,
) -> Task:
    """A task of a stream whose tasks all have the same classes."""
    ids = range(len(cut.classes)) if classes is None else classes
    labels = tuple(range(len(ids)))
    return task_of(cut, index, three, ids, labels, scenario, names=names, name=name, online=online)


def stream_of(
    cut: Parts,
    word: str,
    make: Callable[[int], Task],
    tasks: int,
    scenario: Scenario,
    heads: Sequence[int],
    seed: int,
    **more: Any,
) -> Stream:
    """A stream whose tasks are made by `make`, named after its data set and `word`."""
    name = f"{cut.name}, {word}"
    return Stream(name, make, tasks, scenario=scenario, heads=heads, shape=cut.train.shape, seed=seed, **more)


def shared_stream(
    cut: Parts,
    word: str,
    make: Callable[[int], Task],
    tasks: int,
    scenario: Scenario,
    seed: int,
    *,
    width: int | None = None,
    **more: Any,
) -> Stream:
    """A stream whose tasks all have the same classes, or `width` of them."""
    if scenario == "class":
        raise ValueError('scenario="class": all tasks have the same classes here; choose "task" or "domain"')
    outputs = width or len(cut.classes)
    heads = [outputs] * (tasks if scenario == "task" else 1)
    return stream_of(cut, word, make, tasks, scenario, heads, seed, **more)
