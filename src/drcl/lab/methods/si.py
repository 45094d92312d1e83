"""Synaptic intelligence (Zenke, Poole, Ganguli, ICML 2017): importance gathered along the path of training.

    each step   omega_i <- omega_i - g_i * (w_i after - w_i before)        g: gradient of the task's loss alone
    task end    Omega_i <- max(0, Omega_i + omega_i / ((w_i - a_i)^2 + xi));   a <- w;   omega <- 0
    loss        L_task + c * sum_i Omega_i (w_i - a_i)^2

omega sums up how much each weight's own motion lowered the loss. So it needs the loss without the penalty, and the
motion that the optimizer really made, including momentum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from drcl.lab.common.fields import option
from drcl.lab.methods import _checks, _quadratic
from drcl.lab.methods.base import Knob, Method
from drcl.lab.streams import Task


@dataclass
class SI(Method):
    """Keeps three numbers per weight: omega, Omega and the anchor."""

    name: ClassVar[str] = "si"
    about: ClassVar[str] = "synaptic intelligence: quadratic penalty weighted by the path integral of the gradient"
    tunes: ClassVar[Knob | None] = Knob("c")

    c: float = option(0.1, "strength of the penalty")
    xi: float = option(0.1, "damping: keeps weights that hardly moved from becoming infinitely important")

    def check(self) -> None:
        _checks.not_negative(self.name, c=self.c)
        _checks.positive(self.name, xi=self.xi)

    def before_task(self, task: Task) -> None:
        if "anchor" in self.state:
            return
        own = self.protected()
        self.state["anchor"] = _quadratic.copies(own)
        self.state["path"] = {name: torch.zeros_like(p) for name, p in own.items()}
        self.state["importance"] = {name: torch.zeros_like(p) for name, p in own.items()}

    def penalty(self) -> Tensor:
        return _quadratic.penalty(self.protected(), self.state["anchor"], self.state["importance"], 2 * self.c)

    def after_backward(self) -> None:
        own = {name: p for name, p in self.protected().items() if p.grad is not None}
        self._gradient = {name: p.grad.clone() for name, p in own.items() if p.grad is not None}
        self._before = _quadratic.copies(own)
        _quadratic.add_pull(own, {n: self.state["anchor"][n] for n in own}, self.state["importance"], 2 * self.c)

    @torch.no_grad()
    def after_step(self) -> None:
        own = self.protected()
        for name, gradient in self._gradient.items():
            self.state["path"][name].addcmul_(gradient, own[name] - self._before[name], value=-1)

    @torch.no_grad()
    def after_task(self, task: Task) -> None:
        for name, p in self.protected().items():
            path, anchor, importance = (self.state[key][name] for key in ("path", "anchor", "importance"))
            importance.add_(path / ((p - anchor) ** 2 + self.xi)).clamp_(min=0)
            anchor.copy_(p)
            path.zero_()
