"""A-GEM (Chaudhry, Ranzato, Rohrbach, Elhoseiny, ICLR 2019): never step against the average old example.

    g      gradient of the batch
    g_ref  gradient of the mean loss of a batch from the memory of earlier tasks, each example by its own head
    g <- g                                        where g . g_ref >= 0
    g <- g - (g . g_ref / g_ref . g_ref) g_ref    otherwise

Both are one flat vector over the trunk and the heads of all tasks so far. If the batch does not use a head, its part of
g is zero. The guarantee holds for the gradient only: momentum or Adam may still step elsewhere.

At a task's end, `per_class` of its training images per class are remembered, without augmentation, so the reference
never contains examples of the current task. The reference is taken in evaluation mode: no dropout noise, and
norm statistics belong to the task being learned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from drcl.lab.common import seeds
from drcl.lab.common.fields import option
from drcl.lab.methods import _checks
from drcl.lab.methods._memory import Remembering
from drcl.lab.methods.base import Abilities, Batch, mixed_cross_entropy
from drcl.lab.networks.norms import judging
from drcl.lab.streams import Task


@dataclass
class AGEM(Remembering):
    """The memory grows by `per_class` images for each class of each task."""

    name: ClassVar[str] = "agem"
    about: ClassVar[str] = "averaged gradient episodic memory: gradients projected off conflicts with old examples"
    abilities: ClassVar[Abilities] = Abilities(old_data="some")

    per_class: int = option(13, "remembered examples of each class of each task")
    reference: int = option(256, "remembered examples in the reference gradient of a step")

    def check(self) -> None:
        _checks.at_least_one(self.name, per_class=self.per_class, reference=self.reference)

    def after_backward(self) -> None:
        examples = self.remembered(self.reference, self.generator("reference"))
        if examples is not None:
            own = list(self.taught().values())
            project(own, self.reference_gradient(examples, own))

    def reference_gradient(self, examples: Batch, own: list[nn.Parameter]) -> list[Tensor | None]:
        """Of remembered examples; None where they do not reach."""
        self.gradients += 1
        with judging(self.model), torch.enable_grad():
            return list(torch.autograd.grad(mixed_cross_entropy(self.model, examples), own, allow_unused=True))

    def after_task(self, task: Task) -> None:
        memory, train = self.state["memory"], task.train
        order = seeds.permutation(len(train), self.setting.seed, self.name, "memory", task.index)
        chosen = np.concatenate([order[train.labels[order] == label][: self.per_class] for label in task.labels])
        x, y = train.take(chosen)
        new = {"x": x, "y": y, "head": torch.full_like(y, task.head)}
        for key, rows in new.items():
            memory[key] = torch.cat([memory[key], rows.to(memory[key].device)])
        memory["offered"] = len(memory["y"])


@torch.no_grad()
def project(parameters: list[nn.Parameter], reference: list[Tensor | None]) -> bool:
    """Remove from the gradients their part along `reference` if they point against it; returns whether they did."""
    pairs = [(p.grad, r) for p, r in zip(parameters, reference) if p.grad is not None and r is not None]
    # In double: over millions of weights a float32 sum could miss the sign of a small product.
    dot = sum(float((g * r).sum(dtype=torch.float64)) for g, r in pairs)
    if dot >= 0:
        return False
    square = sum(float(r.square().sum(dtype=torch.float64)) for r in reference if r is not None)
    for p, r in zip(parameters, reference):
        if r is not None:
            p.grad = r * (-dot / square) if p.grad is None else p.grad.sub_(r, alpha=dot / square)
    return True
