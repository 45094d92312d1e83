"""CUBER: TRGP that also changes the frozen weights of old tasks if this should help them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from drcl.lab.common.fields import option
from drcl.lab.methods import _bases, _checks
from drcl.lab.methods.base import Knob
from drcl.lab.methods.trgp import TRGP
from drcl.lab.streams import Task


@dataclass
class CUBER(TRGP):
    """Lin, Yang, Fan, Zhang, "Beyond Not-Forgetting: Continual Learning with Backward Knowledge Transfer", NeurIPS 2022
    (arXiv 2211.00789).

    When task t begins, each old task j falls into one of three regimes in each layer. They depend on the gradient G of
    the new task at the current weights, and on G_j, the gradient of the old task when it ended:

        1   |G B_j B_j^T| <= epsilon |G|           weakly related: B_j is held, as in GPM
        2   above, and <G_j, G> <= correlation |G_j| |G|    held, and scaled by Q_j as in TRGP
        3   above, and <G_j, G> above that         positively correlated: W moves along B_j as well

    The loss of the new task gains lam/2 * sum over j in regime 3 of |(W - W_0) B_j|^2, with W_0 the weights it began
    with. Columns of the memory are released if they belong only to tasks in regime 3. Columns that a task in another
    regime uses, in its own space or in one that it scales, stay protected. One gradient per task is kept for this. The
    defaults of epsilon, correlation and lam are constants in the authors' public code of TRGP on CIFAR-100.
    """

    name: ClassVar[str] = "cuber"
    about: ClassVar[str] = "TRGP that also updates positively correlated old tasks (NeurIPS 2022)"
    tunes: ClassVar[Knob | None] = Knob("threshold", 0.5, 0.99)

    correlation: float = option(0.0, "cosine of old and new gradient above which old weights may move")
    lam: float = option(2.0, "strength of the penalty on moving them")

    def check(self) -> None:
        super().check()
        _checks.not_negative(self.name, lam=self.lam)
        if not -1 <= self.correlation <= 1:
            raise ValueError(f"{self.name}: correlation={self.correlation}: give a cosine from -1 to 1")

    def before_task(self, task: Task) -> None:
        super().before_task(task)
        if self.state.get("released"):
            self.state["start"] = {
                name: _bases.weights(self.layers[name]).detach().clone() for name in self.state["released"]
            }

    def trust(self, name: str, gradient: Tensor, near: list[int]) -> list[int]:
        memory: list[Tensor] = self.state["gradients"][name]
        helped = [old for old in near if self._cosine(memory[old], gradient) > self.correlation]
        counts = torch.zeros(self.state["bases"][name].shape[1]).to(gradient)
        for old in helped:
            counts[self.spaces(name)[old]] += 1
        for old in set(range(len(memory))) - set(helped):
            for used in self._used(name, old):
                counts[self.spaces(name)[used]] = 0
        if counts.any():
            self.state.setdefault("released", {})[name] = counts
        return [old for old in near if old not in helped]

    def _used(self, name: str, old: int) -> list[int]:
        """The tasks on whose spaces an old task's answers depend: its own, and those it scales."""
        return [old, *(other for layer, other in self.pairs(old) if layer == name)]

    @staticmethod
    def _cosine(one: Tensor, other: Tensor) -> float:
        lengths = one.norm() * other.norm()
        return float((one * other).sum() / lengths) if lengths > 0 else 0.0

    @torch.no_grad()
    def after_backward(self) -> None:
        for name, counts in self.state.get("released", {}).items():
            layer, basis = self.layers[name], self.state["bases"][name]
            gradient = _bases.gradient(layer)
            if gradient is not None:
                drift = (_bases.weights(layer) - self.state["start"][name]) @ basis
                _bases.write_gradient(layer, gradient + self.lam * (drift * counts) @ basis.T)
        super().after_backward()

    def importance(self, name: str) -> Tensor | None:
        """1 for the columns of the memory that are held, 0 for those released."""
        counts = self.state.get("released", {}).get(name)
        return None if counts is None else (counts == 0).to(counts)

    def after_task(self, task: Task) -> None:
        for word in ("released", "start"):
            self.state.pop(word, None)
        super().after_task(task)
        for name, gradient in self.gradient(task, "gradient").items():
            self.state.setdefault("gradients", {}).setdefault(name, []).append(gradient)
