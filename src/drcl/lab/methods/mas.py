"""Memory aware synapses (Aljundi, Babiloni, Elhoseiny, Rohrbach, Tuytelaars, ECCV 2018): importance without labels.

    Omega_i = mean over samples of |d ||f(x)||^2 / d w_i|        f: the logits of the task's head
    task end    Omega <- decay * Omega + Omega_t;   a <- w
    loss        L_task + lam * sum_i Omega_i (w_i - a_i)^2

What counts is how strongly a weight changes the output, not the loss: a perfectly fitted sample, whose Fisher is zero,
still counts here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from drcl.importance import MAS as Estimator
from drcl.lab.common import seeds
from drcl.lab.common.fields import option
from drcl.lab.methods import _checks, _fisher, _quadratic
from drcl.lab.methods.base import Knob, Method
from drcl.lab.streams import Task


@dataclass
class MAS(Method):
    """Keeps two numbers per weight: Omega and the anchor."""

    name: ClassVar[str] = "mas"
    about: ClassVar[str] = "memory aware synapses: quadratic penalty weighted by the output's sensitivity"
    tunes: ClassVar[Knob | None] = Knob("lam")

    lam: float = option(1.0, "strength of the penalty")
    decay: float = option(1.0, "factor on the old importance when a task's is added; 1 sums over all tasks")
    samples: int | None = option(1000, "training images per task for the importance; none: all")

    def check(self) -> None:
        _checks.not_negative(self.name, lam=self.lam)
        _checks.share(self.name, decay=self.decay)
        _checks.at_least_one_or_none(self.name, samples=self.samples)

    def penalty(self) -> Tensor:
        anchor, importance = self.state.get("anchor", {}), self.state.get("importance", {})
        return _quadratic.penalty(self.protected(), anchor, importance, 2 * self.lam)

    def after_backward(self) -> None:
        if "anchor" in self.state:
            _quadratic.add_pull(self.protected(), self.state["anchor"], self.state["importance"], 2 * self.lam)

    def after_task(self, task: Task) -> None:
        fresh = self.importance(task)
        for name, old in self.state.get("importance", {}).items():
            fresh[name].add_(old, alpha=self.decay)
        self.state["importance"] = fresh
        self.state["anchor"] = _quadratic.copies(self.protected())

    def importance(self, task: Task) -> dict[str, Tensor]:
        """The importance for one task, at the current weights."""
        count = _fisher.number_of(self.samples, task)
        estimator = Estimator(samples=count, seed=seeds.derive(self.setting.seed, "mas", task.index))

        def forward(model: nn.Module, batch: Any) -> tuple[Tensor, None]:
            logits = model(batch[0], task.head)
            heads = self.model.heads
            # The logits of future classes only mean "never", so they are not outputs to keep.
            return (logits[:, heads.seen] if heads.kind == "growing" else logits), None

        return _fisher.estimate(self, estimator, task, self.protected(), count, "samples", forward)
