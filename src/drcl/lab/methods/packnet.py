"""PackNet (Mallya and Lazebnik, CVPR 2018): train a task, release the small weights, retrain the rest, freeze it.

train     the free weights and the head; weights of earlier tasks are used unchanged
    prune     in each layer the share `prune` of the free weights with the smallest |w| is set to 0 and stays free
    retrain   the kept ones, which are this task's from now on, for the share `retrain` of the steps
    freeze    nothing moves them again; the next task trains what is left, from 0

Task k is answered with the weights of the tasks up to k, all others set to 0. So its logits stay the same bit for bit,
and one number per weight, its task, is all that is kept. Biases and norm layers are trained in the first task and then
kept, as in the paper. A fresh optimizer moves nothing that has a zero gradient; weight decay would, and is refused.

With a fixed share the k-th task keeps (1 - prune) * prune^(k-1) of each layer: little is left after ten tasks.
``prune=none`` gives each task the same number of weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from drcl.lab.common.fields import option
from drcl.lab.methods import _checks
from drcl.lab.methods.base import Abilities, Knob, Method, Setting
from drcl.lab.networks import Network
from drcl.lab.streams import Task

FREE = 0  # a weight that no task has kept; those of the first task have the owner 1


@dataclass
class PackNet(Method):
    """Masks the linear and convolutional layers of the trunk."""

    name: ClassVar[str] = "packnet"
    about: ClassVar[str] = "packs tasks into one network: prune by magnitude, retrain, freeze (CVPR 2018)"
    abilities: ClassVar[Abilities] = Abilities(task_ids=True, passes=2, norms="unshared", weight_decay=False)
    tunes: ClassVar[Knob | None] = Knob("prune", 0.25, 0.95)
    stages: ClassVar[int] = 2

    prune: float | None = option(
        0.75, "share of the free weights released after each task; none: an equal number of weights for each task"
    )
    retrain: float = option(0.5, "steps after pruning, as a share of those before; the paper has 10 epochs after 20")

    def check(self) -> None:
        if self.prune is not None:
            _checks.inside(self.name, "prune", self.prune, 0.0, 1.0, "the paper has 0.5 and 0.75")
        if not 0 < self.retrain <= 1:
            raise ValueError(f"packnet: retrain={self.retrain} must lie in (0, 1]: the paper has 0.5")

    def build(self, model: Network, setting: Setting) -> Network:
        super().build(model, setting)
        trunk = model.groups()["trunk"]
        modules = [(name, m) for name, m in model.named_modules() if isinstance(m, nn.Linear | nn.Conv2d)]
        self.masked = {f"{name}.weight": m.weight for name, m in modules if f"{name}.weight" in trunk}
        kind = torch.uint8 if setting.tasks < 255 else torch.int32
        owners = {name: torch.zeros_like(weight, dtype=kind) for name, weight in self.masked.items()}
        self.state = {"owners": owners, "finished": []}
        return model

    def stage_share(self, stage: int) -> float:
        return self.retrain if stage == 1 else 1.0

    def before_stage(self, task: Task, stage: int) -> None:
        if stage == 1:
            self._prune()

    def parameters(self, task: Task) -> dict[str, nn.Parameter]:
        trained = super().parameters(task)
        if self.state["finished"]:
            loose = self.model.groups()["trunk"].keys() - self.masked.keys()
            trained = {name: p for name, p in trained.items() if name not in loose}
        return trained

    def after_backward(self) -> None:
        trains = FREE if self.at.stage == 0 else self._number
        for name, owner in self.owners.items():
            grad = self.masked[name].grad
            if grad is not None:
                grad.masked_fill_(owner != trains, 0.0)

    def after_task(self, task: Task) -> None:
        self.state["finished"] = [*self.state["finished"], task.index]

    def predict(self, x: Tensor, task: Task) -> Tensor:
        if task.index not in self.state["finished"]:
            return self.model(x, task.head)
        masks = self.mask_of(task.index)
        weights = {name: weight.where(masks[name], 0.0) for name, weight in self.masked.items()}
        return functional_call(self.model, weights, (x, task.head))

    # ---- masks

    @property
    def _number(self) -> int:
        """The number of the task being trained, counted from 1."""
        return len(self.state["finished"]) + 1

    @property
    def owners(self) -> dict[str, Tensor]:
        """For each masked weight, the number of its task, counted from 1; 0 if it is free."""
        return self.state["owners"]

    def mask_of(self, task: int) -> dict[str, Tensor]:
        """The weights with which a finished task is answered: its own and those of the tasks before it."""
        number = self.state["finished"].index(task) + 1
        return {name: (owner != FREE) & (owner <= number) for name, owner in self.owners.items()}

    @torch.no_grad()
    def _prune(self) -> None:
        left = self.setting.tasks - len(self.state["finished"])
        share = 1 - 1 / left if self.prune is None else self.prune
        for name, owner in self.owners.items():
            weight, free = self.masked[name], owner == FREE
            kept = largest(weight[free].abs(), share)
            owner[free] = torch.where(kept, self._number, FREE).to(owner.dtype)
            weight.masked_fill_(owner == FREE, 0.0)


def largest(values: Tensor, pruned: float) -> Tensor:
    """Where the largest of these values are once the share `pruned` of them is gone; at least one of them is kept."""
    keep = torch.zeros(len(values), dtype=torch.bool, device=values.device)
    if len(values):
        count = max(1, len(values) - round(pruned * len(values)))
        keep[values.topk(count).indices] = True
    return keep
