"""Experience replay (Chaudhry, Rohrbach, Elhoseiny, Ajanthan, Dokania, Torr, Ranzato 2019) with a reservoir.

    each step       L = mean cross-entropy over the batch and as many remembered examples, each by its own head
    after a step    the batch is offered to the reservoir, which stays a uniform sample of all examples so far

Examples are offered in the first epoch of a task only: offered in every one, a task with more epochs would fill the
memory with copies. They are kept as the network saw them, augmentation included.

Where norm layers keep statistics for each task, those of earlier tasks are final: a handful of replayed examples would
spoil them, and a single one has none. Replayed examples are normalised by them as they will be when judged.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from drcl.lab.common import seeds
from drcl.lab.common.options import option
from drcl.lab.methods import _checks, _memory
from drcl.lab.methods.base import Batch, Method, Setting, mixed_cross_entropy
from drcl.lab.networks import Network
from drcl.lab.networks.norms import PerTaskBatchNorm
from drcl.lab.streams import Task


@dataclass
class ER(Method):
    """Heads of remembered tasks go on learning from their examples."""

    name: ClassVar[str] = "er"
    about: ClassVar[str] = "experience replay: old examples, kept by reservoir sampling, beside each batch"

    memory: int = option(500, "examples that are remembered, of all tasks together")
    replay: int | None = option(None, "remembered examples in a step; none takes as many as the batch has")

    def check(self) -> None:
        _checks.at_least_one(self.name, memory=self.memory, replay=self.replay)

    def build(self, model: Network, setting: Setting) -> Network:
        self.state = {"memory": _memory.empty(self.memory, setting.shape, setting.device), "heads": []}
        return super().build(model, setting)

    def before_task(self, task: Task) -> None:
        if task.head not in self.state["heads"]:
            self.state["heads"] = [*self.state["heads"], task.head]

    def parameters(self, task: Task) -> dict[str, nn.Parameter]:
        return _memory.trunk_and_heads(self.model, self.state["heads"])

    def before_step(self, batch: Batch) -> Batch:
        self._offered = batch
        remembered = _memory.draw(self.state["memory"], self.replay or len(batch), self.dice("replay"))
        return batch if remembered is None else batch.with_more(self.to_device(remembered))

    def loss(self, batch: Batch) -> Tensor:
        if not any(isinstance(layer, PerTaskBatchNorm) for layer in self.model.modules()):
            return self.cross_entropy(batch)
        current = batch.heads() == self.state["heads"][-1]
        total = batch.x.new_zeros(())
        for rows, mode in ((current, contextlib.nullcontext()), (~current, self._final_statistics())):
            if rows.any():
                with mode:
                    part = batch.rows(rows.nonzero().squeeze(1))
                    total = total + mixed_cross_entropy(self.model, part) * (len(part) / len(batch))
        return total

    def _final_statistics(self) -> contextlib.AbstractContextManager[None]:
        return _memory.judging(self.model, PerTaskBatchNorm)

    def after_step(self) -> None:
        if self.at.epoch == 0:
            _memory.offer(self.state["memory"], self._offered, self.dice("reservoir"))
        del self._offered

    def dice(self, word: str) -> torch.Generator:
        """Random numbers of this step, the same for all methods that replay: what is built on ER sees ER's draws."""
        at = self.at
        seed = seeds.derive(self.setting.seed, "replay", word, at.task, at.stage, at.step)
        return torch.Generator().manual_seed(seed)

    def to_device(self, batch: Batch) -> Batch:
        device = self.setting.device
        return Batch(batch.x.to(device), batch.y.to(device), batch.heads().to(device))
