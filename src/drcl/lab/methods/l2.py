"""Uniform drift penalty: stay near the last task's weights, all of them equally. The control for importance.

L = L_task + lam/2 * sum_i (w_i - a_i)^2,    a: the weights after the task before
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from drcl.lab.common.fields import option
from drcl.lab.methods import _checks, _quadratic
from drcl.lab.methods.base import Knob, Method
from drcl.lab.streams import Task


@dataclass
class L2(Method):
    """The baseline that a method with importance has to beat."""

    name: ClassVar[str] = "l2"
    about: ClassVar[str] = "uniform penalty on leaving the last task's weights: the control experiment"
    tunes: ClassVar[Knob | None] = Knob("lam")

    lam: float = option(0.1, "strength of the penalty; plain SGD diverges above 2 / lr")

    def check(self) -> None:
        _checks.not_negative(self.name, lam=self.lam)

    def penalty(self) -> Tensor:
        return _quadratic.penalty(self.protected(), self.state.get("anchor", {}), None, self.lam)

    def after_backward(self) -> None:
        if "anchor" in self.state:
            _quadratic.add_pull(self.protected(), self.state["anchor"], None, self.lam)

    def after_task(self, task: Task) -> None:
        self.state["anchor"] = _quadratic.copies(self.protected())
