"""TRGP: trust region gradient projection. GPM that lets a new task reuse frozen weights of the most related tasks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from drcl.lab.common.fields import option
from drcl.lab.methods import _bases, _checks, _quadratic
from drcl.lab.methods._scales import Scales, key
from drcl.lab.methods.base import Abilities, Batch, Knob, Setting
from drcl.lab.methods.gpm import GPM
from drcl.lab.networks import Network
from drcl.lab.streams import Task
from drcl.preserve import undisturbed


@dataclass
class TRGP(GPM):
    """Lin, Yang, Fan, Zhang, "TRGP: Trust Region Gradient Projection for Continual Learning", ICLR 2022 (arXiv
    2202.02931).

    The memory M of each layer grows as in GPM, and steps are orthogonal to it. Beside it every task j has its own space
    B_j: the fewest columns of M that hold the share `threshold` of the energy of its inputs. When task t begins, G is
    the gradient of its loss at a layer for some of its images. The task trusts the old tasks with

        |G B_j B_j^T| > epsilon |G|,

    at most `related` of them, those with the longest projection. It then computes with

        W_t = W + sum over trusted j of  W B_j (Q_j - 1) B_j^T,

    where W B_j is frozen and the scaling matrices Q_j, 1 at first, are trained together with W. They are kept, so the
    task must be known to answer. Inputs are recorded with W_t, so its outputs do not change.
    """

    name: ClassVar[str] = "trgp"
    about: ClassVar[str] = "GPM that scales the frozen weights of related old tasks (ICLR 2022)"
    abilities: ClassVar[Abilities] = replace(GPM.abilities, task_ids=True)
    tunes: ClassVar[Knob | None] = Knob("threshold", 0.5, 0.99)

    epsilon: float = option(
        0.5, "share of the gradient in an old task's space above which the task is trusted; 1: no task is"
    )
    related: int = option(2, "largest number of old tasks trusted in each layer")

    def check(self) -> None:
        super().check()
        if not 0 <= self.epsilon <= 1:
            raise ValueError(f"{self.name}: epsilon={self.epsilon}: give a share from 0 to 1; the paper takes 0.5")
        _checks.at_least(self.name, "related", self.related, 0, "the paper takes 2, and 0 scales none")

    def build(self, model: Network, setting: Setting) -> Network:
        super().build(model, setting)
        # Kept outside the trunk: they are not weights and must not count when weights are compared.
        model.add_module("scales", Scales())
        return model

    def parameters(self, task: Task) -> dict[str, nn.Parameter]:
        own = [key(task.index, name, old) for name, old in self.pairs(task.index)]
        return super().parameters(task) | {f"scales.{each}": self.scales[each] for each in own}

    @property
    def scales(self) -> Scales:
        found = self.model.scales
        assert isinstance(found, Scales)
        return found

    # ---- whom to trust

    def before_task(self, task: Task) -> None:
        if "bases" not in self.state:
            return
        trusted: dict[str, list[int]] = {}
        for name, gradient in self.gradient(task, "trust").items():
            parts = [float((gradient @ self.space(name, old)).norm()) for old in range(len(self.spaces(name)))]
            length = float(gradient.norm())
            near = [old for old, part in enumerate(parts) if min(part, length) > self.epsilon * length]
            near.sort(key=lambda old: -parts[old])
            trusted[name] = self.trust(name, gradient, near)[: self.related]
            for old in trusted[name]:
                width = len(self.spaces(name)[old])
                self.scales[key(task.index, name, old)] = nn.Parameter(torch.eye(width).to(gradient))
        self.state.setdefault("trusted", {})[str(task.index)] = trusted

    def trust(self, name: str, gradient: Tensor, near: list[int]) -> list[int]:
        """The related old tasks that are to be scaled, most related first."""
        return near

    def gradient(self, task: Task, word: str) -> dict[str, Tensor]:
        """The gradient of the loss at each layer, as a matrix, for some images of a task, with the current weights."""
        batches = list(self.sample(task, self.samples, word))
        images = sum(len(y) for _, y in batches)
        self.gradients += -(-images // self.setting.batch)
        found = {}
        with undisturbed(self.model):
            self.model.eval()
            for x, y in batches:
                (F.cross_entropy(self.predict(x, task), y, reduction="sum") / images).backward()
            for name, layer in self.layers.items():
                matrix = _bases.gradient(layer)
                assert matrix is not None
                found[name] = matrix.clone()
        return found

    # ---- scaled weights

    def loss(self, batch: Batch) -> Tensor:
        assert isinstance(batch.head, int)
        logits = self.forward(batch.x, self.at.task, batch.head)
        self.logits = logits.detach()
        return F.cross_entropy(logits, batch.y)

    def predict(self, x: Tensor, task: Task) -> Tensor:
        return self.forward(x, task.index, task.head)

    def forward(self, x: Tensor, task: int, head: int) -> Tensor:
        weights = self.weights(task)
        return functional_call(self.model, weights, (x, head)) if weights else self.model(x, head)

    def weights(self, task: int) -> dict[str, Tensor]:
        """W_t, by the names of the parameters, where it is not W."""
        change: dict[str, Tensor] = {}
        for name, old in self.pairs(task):
            basis, scale = self.space(name, old), self.scales[key(task, name, old)]
            along = _bases.weights(self.layers[name]) @ basis
            more = (along @ scale - along) @ basis.T
            change[name] = change[name] + more if name in change else more
        found: dict[str, Tensor] = {}
        for name, more in change.items():
            layer = self.layers[name]
            if layer.bias is not None:
                found[f"{name}.bias"] = layer.bias + more[:, -1]
                more = more[:, :-1]
            found[f"{name}.weight"] = layer.weight + more.reshape(layer.weight.shape)
        return found

    def pairs(self, task: int) -> list[tuple[str, int]]:
        """Each layer and old task that this task trusts there."""
        trusted = self.state.get("trusted", {}).get(str(task), {})
        return [(name, old) for name, tasks in trusted.items() for old in tasks]

    # ---- the end of a task

    def after_task(self, task: Task) -> None:
        own = self.protected()
        plain = _quadratic.copies(own)
        with torch.no_grad():
            for name, value in self.weights(task.index).items():
                own[name].copy_(value)
            super().after_task(task)
            for name, value in plain.items():
                own[name].copy_(value)

    def weigh(self, name: str, old: Tensor, values: Tensor, inputs: Tensor) -> None:
        """Note which columns of the memory make up the task's own space."""
        energy = (self.state["bases"][name].to(inputs).T @ inputs).square().sum(1)
        order = energy.argsort(descending=True, stable=True)
        wanted = self._wanted(name) * inputs.square().sum()
        count = int((energy[order].cumsum(0) < wanted).sum()) + 1
        self.state.setdefault("spaces", {}).setdefault(name, []).append(order[:count].sort().values)

    def _wanted(self, name: str) -> float:
        thresholds = self._thresholds()
        own = thresholds[list(self.layers).index(name)] if len(thresholds) > 1 else thresholds[0]
        return min(1.0, own + self.increase * self.at.task)

    def spaces(self, name: str) -> list[Tensor]:
        """For each task learned, the columns of a layer's memory that are its own space."""
        return self.state["spaces"][name]

    def space(self, name: str, old: int) -> Tensor:
        """B_j, orthonormal columns."""
        return self.state["bases"][name][:, self.spaces(name)[old]]

    def state_bytes(self) -> int:
        """The scaling matrices belong to the method, although the network contains them."""
        return super().state_bytes() + sum(scale.nbytes for scale in self.scales.values())
