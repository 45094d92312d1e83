"""Elastic weight consolidation (Kirkpatrick et al. 2017; online form: Schwarz et al. 2018).

    L = L_task + lam/2 * sum_i F_i (w_i - a_i)^2,    F_i = mean over samples of (d log p(y|x) / d w_i)^2

    separate   one anchor and one F for every task; the penalties add up
    online     one anchor, the latest; F <- decay * F + F_t
    averaged   one anchor, the latest; F <- (t F + F_t) / (t + 1) with t tasks before this one

The gradients are those of single samples: the squared gradient of a batch would shrink with its size, which is why a
lam from one code base means nothing in another.

As part of the loss, this penalty makes gradient descent diverge once lr * lam * max F > 2 (2 (1 + momentum) with
momentum). The run then ends with an error that says so. A proximal method takes the same penalty without that limit.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from drcl.importance import Fisher, Labels
from drcl.lab.common import seeds
from drcl.lab.common.fields import option
from drcl.lab.methods import _checks, _fisher, _quadratic
from drcl.lab.methods._fisher import LABELS
from drcl.lab.methods.base import Knob, Method
from drcl.lab.streams import Task


@dataclass
class EWC(Method):
    """Heads of single tasks are free: their Fisher of other tasks is zero. A shared head is penalised like the rest."""

    name: ClassVar[str] = "ewc"
    about: ClassVar[str] = "elastic weight consolidation: quadratic penalty weighted by the Fisher information"
    tunes: ClassVar[Knob | None] = Knob("lam")

    lam: float = option(100.0, "strength of the penalty")
    kind: Literal["online", "separate", "averaged"] = option(
        "online", "how the penalties of several tasks are combined"
    )
    decay: float = option(1.0, "online: factor on the old Fisher when a new one is added")
    samples: int | None = option(1000, "training images per task for the Fisher; none: all")
    labels: Labels = option("sampled", LABELS)

    def check(self) -> None:
        _checks.not_negative(self.name, lam=self.lam)
        _checks.share(self.name, decay=self.decay)
        _checks.at_least_one_or_none(self.name, samples=self.samples)

    @property
    def anchors(self) -> list[dict[str, dict[str, Tensor]]]:
        """The penalties in force: ``{"weights": ..., "fisher": ...}`` each."""
        return self.state.get("anchors", [])

    def penalty(self) -> Tensor:
        own = self.protected()
        parts = [_quadratic.penalty(own, a["weights"], a["fisher"], self.lam) for a in self.anchors]
        return sum(parts, torch.zeros(()))

    def after_backward(self) -> None:
        if not self.anchors:
            return
        own = self.protected()
        for a in self.anchors:
            _quadratic.add_pull(own, a["weights"], a["fisher"], self.lam)

    def after_task(self, task: Task) -> None:
        new = {"weights": _quadratic.copies(self.protected()), "fisher": self.fisher(task)}
        if self.anchors and self.kind != "separate":
            old, before = self.anchors[0]["fisher"], self.state["tasks"]
            for name, fresh in new["fisher"].items():
                if self.kind == "online":
                    fresh.add_(old[name], alpha=self.decay)
                else:
                    fresh.add_(old[name], alpha=float(before)).div_(before + 1)
        self.state["tasks"] = self.state.get("tasks", 0) + 1
        self.state["anchors"] = [*self.anchors, new] if self.kind == "separate" else [new]
        self._warn()

    def fisher(self, task: Task) -> dict[str, Tensor]:
        count = _fisher.number_of(self.samples, task)
        seed = seeds.derive(self.setting.seed, "fisher", task.index)
        estimator = Fisher(samples=count, labels=self.labels, seed=seed)
        return _fisher.estimate(self, estimator, task, self.protected(), count, "fisher")

    def _warn(self) -> None:
        # Several anchors pull together, so their curvatures add up weight by weight.
        sums = [torch.stack([a["fisher"][n] for a in self.anchors]).sum(0) for n in self.anchors[0]["fisher"]]
        steepest = max(float(total.max()) for total in sums)
        momentum = self.setting.momentum if self.setting.optimizer == "sgd" else 0.0
        reach = self.setting.lr * self.lam * steepest
        if self.setting.optimizer == "sgd" and reach > 2 * (1 + momentum):
            warnings.warn(
                f"ewc: lr * lam * max F = {reach:.3g} is above {2 * (1 + momentum):.3g}, so the penalty alone makes "
                f"the steps grow: lower lam (now {self.lam:g}) or lr (now {self.setting.lr:g})",
                stacklevel=2,
            )
