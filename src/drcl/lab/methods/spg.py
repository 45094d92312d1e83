"""SPG (Konishi, Kurokawa, Ono, Ke, Kim, Liu, ICML 2023): soft masks on the gradients of single weights.

    task end    for each head k of the tasks so far: G = gradient summed over this task's training data, of the
                cross-entropy for the task's own head, of the sum of all logits for the others
                importance_k = | tanh( (G - mean G) / std G ) |     within each tensor
                a <- max(a, max over k of importance_k)
    later       gradients of the trunk times (1 - a), of the task's head times (1 - mean a)

The first task is trained without a mask. For other heads, the method measures how strongly this task's data move them;
this takes old tasks into account without their data. Importance is computed in evaluation mode, without dropout. If
tasks share one head, there is no other head to measure, and the head is masked like the trunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from drcl.lab.methods.base import Method
from drcl.lab.streams import Task
from drcl.preserve import undisturbed

# tanh in float32 reaches 1 at about 9 standard deviations, but no weight should be frozen forever.
ALMOST_ONE = 1 - torch.finfo(torch.float32).eps


@dataclass
class SPG(Method):
    """Keeps one number per weight. It has no hyperparameter of its own."""

    name: ClassVar[str] = "spg"
    about: ClassVar[str] = "soft masks: each weight's gradient scaled down by its importance to the tasks so far"

    def before_task(self, task: Task) -> None:
        if task.head not in self.state.get("heads", []):
            self.state["heads"] = [*self.state.get("heads", []), task.head]

    @torch.no_grad()
    def after_backward(self) -> None:
        masks = self.state.get("mask")
        if masks is None:
            return
        # The mean does not change within a task, but it is cheap, and a cache could go stale.
        mean = sum(m.sum() for m in masks.values()) / sum(m.numel() for m in masks.values())
        for name, p in self.model.named_parameters():
            if p.grad is not None:
                p.grad.mul_(1 - masks.get(name, mean))

    def after_task(self, task: Task) -> None:
        masks = self.state.get("mask", {})
        for head in self.state["heads"]:
            for name, found in self.importance(task, head).items():
                masks[name] = torch.maximum(masks[name], found) if name in masks else found
        self.state["mask"] = masks

    def importance(self, task: Task, head: int) -> dict[str, Tensor]:
        """The importance of each protected weight for one head, from the task's data, between 0 and 1."""
        own = self.protected()
        total = {name: torch.zeros_like(p) for name, p in own.items()}
        with undisturbed(self.model):
            self.model.eval()
            for value in self._values(task, head):
                gradients = torch.autograd.grad(value, list(own.values()), allow_unused=True)
                self.gradients += 1
                for sums, gradient in zip(total.values(), gradients):
                    if gradient is not None:
                        sums += gradient
        return {name: soft_mask(g) for name, g in total.items()}

    def _values(self, task: Task, head: int) -> Iterator[Tensor]:
        """What is differentiated, summed over a batch at a time."""
        for x, y in self.sample(task, None, "importance"):
            logits = self.model(x, head)
            yield F.cross_entropy(logits, y, reduction="sum") if head == task.head else logits.sum()


def soft_mask(gradient: Tensor) -> Tensor:
    """How far each entry stands out from its tensor, between 0 and 1."""
    return standardised(gradient).tanh().abs().clamp(max=ALMOST_ONE)


def standardised(values: Tensor) -> Tensor:
    """Scaled to mean 0 and standard deviation 1; zeros if all are equal, because then none stands out."""
    centred = values - values.mean()
    deviation = centred.square().mean().sqrt()
    return centred / deviation if deviation > 0 else torch.zeros_like(values)
