"""BECAME: train with gradient projection, then without, and merge both networks on the line between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from drcl.importance import Labels
from drcl.lab.common.fields import option
from drcl.lab.methods import _checks, _fisher
from drcl.lab.methods._fisher import LABELS
from drcl.lab.methods.base import Abilities, Knob
from drcl.lab.methods.sgp import SGP
from drcl.lab.streams import Task


@dataclass
class BECAME(SGP):
    """Li, Lu, Dai, Huang, Ding, Lu, "BECAME: BayEsian Continual Learning with Adaptive Model MErging", ICML 2025
    (arXiv 2504.02666). No code of it is public; this follows the derivation below.

    From the second task on there are two stages: with projection (GPM's or SGP's), which ends in p, and from there
    without, which ends in w. With d = w - p the old tasks are taken as quadratic around p with the precision
    sum_i F_i, the new one around w with F_t(w); on the line p + k d their sum is smallest at

        k = d^T F_t(w) d / d^T (F_t(w) + sum_{i<t} F_i) d,

    one number in [0, 1] for the whole network. The merged weights are kept, F_t of them joins the sum and the bases
    grow from their activations. F is the diagonal Fisher information, the mean over the same number of examples in
    every task, so that all tasks have equal weight. Only shared weights are merged; a task's own head stays as the
    second stage left it. Scale and shift of norm layers are kept after the first task in both stages. Training costs
    twice the steps, except in the first task.
    """

    name: ClassVar[str] = "became"
    about: ClassVar[str] = "merges a projected and a free solution by their Fisher information (ICML 2025)"
    abilities: ClassVar[Abilities] = replace(SGP.abilities, passes=2)
    tunes: ClassVar[Knob | None] = Knob("threshold", 0.5, 0.99)

    host: Literal["gpm", "sgp"] = option("gpm", "projection of the first stage")
    fisher_samples: int = option(1000, "images of each task for the Fisher information")
    labels: Labels = option("sampled", LABELS)

    def check(self) -> None:
        super().check()
        _checks.at_least(
            self.name, "fisher_samples", self.fisher_samples, 1, "the merge needs it to weigh tasks; try 1000"
        )

    @property
    def stages(self) -> int:  # type: ignore[override]
        return 1 if self.at.task == 0 else 2

    def before_stage(self, task: Task, stage: int) -> None:
        if stage == 1:
            self.state["projected"] = {name: p.detach().clone() for name, p in self.protected().items()}

    def after_backward(self) -> None:
        if self.at.stage == 0:
            super().after_backward()

    def after_task(self, task: Task) -> None:
        shared = self.protected()
        total: dict[str, Tensor] = self.state.setdefault("precision", {})
        if "projected" in self.state:
            start = self.state.pop("projected")
            new = _fisher.diagonal(self, task, shared, self.fisher_samples, self.labels, "free")
            away = {name: p.detach() - start[name] for name, p in shared.items()}
            share = coefficient(away, new, total)
            self.state.setdefault("shares", []).append(share)
            with torch.no_grad():
                for name, p in shared.items():
                    p.copy_(start[name] + share * away[name])
        for name, fisher in _fisher.diagonal(self, task, shared, self.fisher_samples, self.labels, "merged").items():
            total[name] = total[name] + fisher if name in total else fisher
        super().after_task(task)

    # ---- the projection of its first stage

    def importance(self, name: str) -> Tensor | None:
        return super().importance(name) if self.host == "sgp" else None

    def weigh(self, name: str, old: Tensor, values: Tensor, inputs: Tensor) -> None:
        if self.host == "sgp":
            super().weigh(name, old, values, inputs)


def coefficient(away: Mapping[str, Tensor], new: Mapping[str, Tensor], old: Mapping[str, Tensor]) -> float:
    """How far to go from the projected weights (0) to the free ones (1); 1 if no task opposes it."""
    gain = sum(float((new[name].double() * d.double().square()).sum()) for name, d in away.items())
    loss = sum(float((old[name].double() * d.double().square()).sum()) for name, d in away.items())
    return gain / (gain + loss) if gain + loss > 0 else 1.0
