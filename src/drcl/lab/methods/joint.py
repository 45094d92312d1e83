"""Joint training: all tasks together, once. The upper bound of every table.

Nothing is trained until the last task. Then the network is trained on the union of all tasks, and each image is
answered by the head of its own task. So only the last row of the accuracy matrix exists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from drcl.lab.methods.base import Abilities, Method
from drcl.lab.streams import Stream, Task


@dataclass
class Joint(Method):
    """The epochs are those of a single task, each of them over the union."""

    name: ClassVar[str] = "joint"
    about: ClassVar[str] = "all tasks trained together at the end: the upper bound"
    abilities: ClassVar[Abilities] = Abilities(old_data="all")

    def data(self, task: Task, stream: Stream) -> Sequence[Task]:
        return list(stream) if task.index == stream[-1].index else []

    def parameters(self, task: Task) -> dict[str, nn.Parameter]:
        return dict(self.model.named_parameters())
