"""Remembered examples: a reservoir that is a uniform sample of all it was ever offered, and how to draw from it.

Everything is a nest of tensors and plain values inside a method's state, so a checkpoint contains it and a resumed run
continues with the same memory. Each example is stored with the head that answers it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from drcl.lab.methods.base import Batch, Method, Setting
from drcl.lab.networks import Network
from drcl.lab.streams import Task

Memory = dict[str, Any]  # x, y, head: one row per example; offered: number of examples seen


def empty(rows: int, shape: tuple[int, ...], device: torch.device | str = "cpu") -> Memory:
    """Room for `rows` images of that shape."""
    return {
        "x": torch.zeros(rows, *shape, device=device),
        "y": torch.zeros(rows, dtype=torch.int64, device=device),
        "head": torch.zeros(rows, dtype=torch.int64, device=device),
        "offered": 0,
    }


def filled(memory: Memory) -> int:
    """The number of examples in the memory."""
    return min(int(memory["offered"]), len(memory["y"]))


def offer(memory: Memory, batch: Batch, generator: torch.Generator, **more: Tensor) -> None:
    """Reservoir sampling (Vitter 1985): the n-th example offered is kept with probability rows / n, in the place of a
    random one, which leaves every example offered so far equally likely to be there. `more` are columns of the memory
    beside images, labels and heads."""
    rows, heads = len(memory["y"]), batch.heads()
    # One draw per example, all at once; float64 is exact enough for streams of any length.
    chance = torch.rand(len(batch), generator=generator, dtype=torch.float64).tolist()
    places: dict[int, int] = {}
    for i, share in enumerate(chance):
        n = int(memory["offered"])
        place = n if n < rows else int(share * (n + 1))
        if place < rows:
            places[place] = i  # a later example of the same batch may take the same place
        memory["offered"] = n + 1
    if not places:
        return
    device = memory["y"].device
    to = torch.tensor(list(places), device=device)
    chosen = torch.tensor(list(places.values()), device=batch.y.device)
    for key, column in {"x": batch.x, "y": batch.y, "head": heads, **more}.items():
        memory[key][to] = column[chosen].detach().to(device=device, dtype=memory[key].dtype)


def draw_rows(memory: Memory, count: int, generator: torch.Generator) -> Tensor:
    """Positions of `count` different examples, at random; all of them if there are no more."""
    return torch.randperm(filled(memory), generator=generator)[:count].to(memory["y"].device)


def draw(memory: Memory, count: int, generator: torch.Generator) -> Batch | None:
    """`count` different examples at random; all of them if there are no more; None if there are none."""
    if filled(memory) == 0:
        return None
    return at_rows(memory, draw_rows(memory, count, generator))


def at_rows(memory: Memory, rows: Tensor) -> Batch:
    return Batch(memory["x"][rows], memory["y"][rows], memory["head"][rows])


def trunk_and_heads(model: Network, heads: list[int]) -> dict[str, nn.Parameter]:
    """Parameters that remembered examples can train: the trunk and the heads of all tasks so far."""
    parts = [model.groups()["trunk"], *(model.head_parameters(head) for head in heads)]
    return {name: p for part in parts for name, p in part.items()}


@dataclass
class Remembering(Method):
    """Base of methods that keep examples; these train the trunk and the heads of all tasks so far."""

    def rows(self) -> int:
        """The number of examples for which there is room at the beginning."""
        return 0

    def build(self, model: Network, setting: Setting) -> Network:
        self.state = {"memory": empty(self.rows(), setting.shape, setting.device), "heads": []}
        return super().build(model, setting)

    def before_task(self, task: Task) -> None:
        if task.head not in self.state["heads"]:
            self.state["heads"] = [*self.state["heads"], task.head]

    def parameters(self, task: Task) -> dict[str, nn.Parameter]:
        return self.taught()

    def taught(self) -> dict[str, nn.Parameter]:
        """The parameters that examples of all tasks so far can train, by name."""
        return trunk_and_heads(self.model, self.state["heads"])

    def remembered(self, count: int, generator: torch.Generator) -> Batch | None:
        """Examples at random, on the run's device; None while there are none."""
        found = draw(self.state["memory"], count, generator)
        return None if found is None else self.to_device(found)

    def to_device(self, batch: Batch) -> Batch:
        device = self.setting.device
        return Batch(batch.x.to(device), batch.y.to(device), batch.heads().to(device))
