"""`Task` and `Stream`: a benchmark is a plain sequence of tasks that any loop can iterate over."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args, overload

from drcl.lab.streams.examples import Examples

Scenario = Literal["task", "domain", "class"]


@dataclass(frozen=True, eq=False)
class Task:
    """One task of a stream.

    In scenario "task" each task has its own head and labels count from 0; in "domain" all tasks share
    head 0 and its labels; in "class" they share head 0, which has one output for every class of the whole
    stream, in the order in which they come. ``labels`` are the outputs that this task uses, ``classes`` the
    data set's class ids for them.
    """

    index: int
    name: str
    train: Examples
    valid: Examples
    test: Examples
    classes: tuple[int, ...]
    class_names: tuple[str, ...]
    labels: tuple[int, ...]
    head: int
    scenario: Scenario
    online: bool = False

    def __repr__(self) -> str:
        sizes = f"train={len(self.train)}, valid={len(self.valid)}, test={len(self.test)}"
        return f"Task({self.index}, {self.name!r}, {len(self.classes)} classes, head={self.head}, {sizes})"


class Stream(Sequence[Task]):
    """Tasks in their order, made when first used. A slice is again a stream and keeps indices and heads.

    ``heads`` holds the number of outputs of each head that the whole stream needs, ``shape`` the
    ``(C, H, W)`` of its images. ``online`` says that each task is one pass of fresh draws, to be scored
    before each update.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[int], Task],
        count: int,
        *,
        scenario: Scenario,
        heads: Sequence[int],
        shape: tuple[int, int, int],
        seed: int,
        online: bool = False,
    ) -> None:
        if scenario not in get_args(Scenario):
            raise ValueError(f"scenario={scenario!r} is unknown: choose one of {', '.join(get_args(Scenario))}")
        if count < 1:
            raise ValueError(f"tasks={count}: a stream needs at least one task")
        self.name, self.scenario, self.heads, self.shape = name, scenario, tuple(heads), shape
        self.seed, self.online = seed, online
        self._make = make
        self._indices: Sequence[int] = range(count)
        self._made: dict[int, Task] = {}

    def __len__(self) -> int:
        return len(self._indices)

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> Stream: ...
    def __getitem__(self, index: int | slice) -> Task | Stream:
        if isinstance(index, slice):
            part = object.__new__(Stream)
            part.__dict__.update(self.__dict__)
            part._indices = self._indices[index]
            return part
        number = self._indices[index]
        if number not in self._made:
            self._made[number] = self._make(number)
        return self._made[number]

    def __iter__(self) -> Iterator[Task]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        return f"Stream({self.name!r}, {len(self)} tasks, {self.scenario}-incremental, seed={self.seed})"
