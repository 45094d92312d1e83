"""Experience replay (Chaudhry, Rohrbach, Elhoseiny, Ajanthan, Dokania, Torr, Ranzato 2019) with a reservoir.

    each step       L = mean cross-entropy over the batch and as many remembered examples, each by its own head
    after a step    the batch is offered to the reservoir, which stays a uniform sample of all examples so far

Examples are offered only in the first epoch of a task: otherwise a task with more epochs would fill the memory with
copies. They are stored as the network saw them, including augmentation.

Where norm layers keep statistics for each task, those of earlier tasks are final (`Network.by_head`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from drcl.lab.common import seeds
from drcl.lab.common.fields import option
from drcl.lab.methods import _checks, _memory
from drcl.lab.methods._memory import Remembering
from drcl.lab.methods.base import Abilities, Batch


@dataclass
class ER(Remembering):
    """Heads of remembered tasks continue to learn from their examples."""

    name: ClassVar[str] = "er"
    about: ClassVar[str] = "experience replay: each batch is joined by old examples, kept by reservoir sampling"
    abilities: ClassVar[Abilities] = Abilities(task_ends=False, old_data="some")

    memory: int = option(500, "number of remembered examples, over all tasks")
    replay: int | None = option(None, "remembered examples per step; none: as many as the batch has")

    def check(self) -> None:
        _checks.at_least_one(self.name, memory=self.memory)
        _checks.at_least_one_or_none(self.name, replay=self.replay)

    def rows(self) -> int:
        return self.memory

    def before_step(self, batch: Batch) -> Batch:
        self._offered = batch
        remembered = self.remembered(self.replay or len(batch), self.dice("replay"))
        return batch if remembered is None else batch.with_more(remembered)

    def after_step(self) -> None:
        if self.at.epoch == 0:
            _memory.offer(self.state["memory"], self._offered, self.dice("reservoir"))
        del self._offered

    def dice(self, word: str) -> torch.Generator:
        """Random numbers of this step, the same for all replay methods: methods built on ER see ER's draws."""
        at = self.at
        seed = seeds.derive(self.setting.seed, "replay", word, at.task, at.stage, at.step)
        return torch.Generator().manual_seed(seed)
