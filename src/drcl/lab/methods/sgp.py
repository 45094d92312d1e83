"""SGP: scaled gradient projection. GPM that lets less important directions move a little."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from drcl.lab.common.fields import option
from drcl.lab.methods import _checks
from drcl.lab.methods.base import Knob
from drcl.lab.methods.gpm import GPM


@dataclass
class SGP(GPM):
    """Saha, Roy, "Continual Learning with Scaled Gradient Projection", AAAI 2023 (arXiv 2302.01386).

    As GPM, with an importance in [0, 1] for every direction: ``G <- G - G M diag(importance) M^T``. At the end of a
    task a new direction has its singular value s_j in R^, an old one m_j has s_j = |R^T m_j|, and with the largest of
    them all

        importance_j = (alpha + 1) s_j / (alpha s_j + s_max),

    which for an old direction is added to what it had, up to 1.
    """

    name: ClassVar[str] = "sgp"
    about: ClassVar[str] = "GPM with an importance for every direction (AAAI 2023)"
    tunes: ClassVar[Knob | None] = Knob("alpha", 0.5, 50.0)

    alpha: float = option(10.0, "how fast importance rises with the singular value; large values give GPM")

    def check(self) -> None:
        super().check()
        _checks.at_least(self.name, "alpha", self.alpha, 0.0, "the paper uses 1 to 25")

    def importance(self, name: str) -> Tensor | None:
        return self.state["importances"][name]

    def weigh(self, name: str, old: Tensor, values: Tensor, inputs: Tensor) -> None:
        known: dict[str, Tensor] = self.state.setdefault("importances", {})
        seen = torch.linalg.vector_norm(old.to(inputs).T @ inputs, dim=1)
        strengths = torch.cat([seen, values])
        fresh = importance(strengths, self.alpha).to(old)
        before = known.get(name, fresh.new_empty(0))
        grown = (before + fresh[: len(before)]).clamp(max=1.0)
        known[name] = torch.cat([grown, fresh[len(before) :]])


def importance(strengths: Tensor, alpha: float) -> Tensor:
    """Singular values as importances: 1 for the largest, 0 for 0."""
    if not len(strengths) or not strengths.max() > 0:
        return torch.zeros_like(strengths)
    return (alpha + 1) * strengths / (alpha * strengths + strengths.max())
