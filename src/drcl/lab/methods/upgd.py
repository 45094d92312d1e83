"""UPGD (Elsayed, Mahmood, ICLR 2024): small steps for useful weights, noise for the others. It does not need to know
the tasks.

    utility     M = - g * w                      by how much the loss would rise if w were zero, to first order
    trace       U <- beta U + (1 - beta) M;      U^ = U / (1 - beta^n)
    scaled      U_ = sigmoid(U^ / eta)           global: eta = largest U^ of all weights
                                                 local: U^ / its norm along the last dimension of the tensor
    step        w <- (1 - lr wd) w - lr (g + noise) (1 - U_),      noise ~ N(0, sigma^2)

The best weight keeps 1 - sigmoid(1) = 0.27 of its step, one without any utility half, a harmful one more
than half. With ``protect = "noise"`` (the paper's non-protecting form) only the noise is scaled.

eta is computed from the corrected trace, as in the paper's algorithm. If no weight is useful at all, it would reverse
the order, so the largest absolute utility is used instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from drcl.lab.common.fields import option
from drcl.lab.methods import _checks
from drcl.lab.methods.base import Abilities, Knob, Method
from drcl.lab.streams import Task


@dataclass
class UPGD(Method):
    """Gradients are rewritten before plain descent takes them; the trace, one number per weight, outlives the tasks."""

    name: ClassVar[str] = "upgd"
    about: ClassVar[str] = (
        "utility-based perturbed gradient descent: small steps for useful weights, noise for useless ones"
    )
    abilities: ClassVar[Abilities] = Abilities(task_ends=False, optimizer="own")
    tunes: ClassVar[Knob | None] = Knob("sigma", 1e-4, 1.0)

    scaling: Literal["global", "local"] = option("global", "utilities relative to the network's best or to their row's")
    protect: Literal["gradient", "noise"] = option("gradient", "what utility scales down: all of the step or its noise")
    sigma: float = option(0.001, "standard deviation of the noise added to the gradient")
    beta: float = option(0.999, "decay of the utility trace")
    decay: float = option(0.001, "weight decay, applied separately from the gradient")

    def check(self) -> None:
        _checks.not_negative(self.name, sigma=self.sigma, decay=self.decay)
        _checks.decay(self.name, beta=self.beta)

    def optimizer(self, task: Task) -> torch.optim.Optimizer:
        # SGD adds decay * w to the gradient, which without momentum is the decoupled decay of the equation above.
        own = list(self.parameters(task).items())
        return torch.optim.SGD(own, lr=self.setting.lr, weight_decay=self.decay)

    @torch.no_grad()
    def after_backward(self) -> None:
        # Heads of other tasks have no gradient: they get no noise and do not count in the largest utility.
        own = {name: p for name, p in self.model.named_parameters() if p.grad is not None}
        keep = {name: 1 - share for name, share in scaled(self._utilities(), self.scaling).items()}
        generator = self.generator("noise") if self.sigma else None
        for name, p in own.items():
            assert p.grad is not None
            if self.protect == "gradient":
                p.grad.add_(self._noise(p, generator)).mul_(keep[name])
            else:
                p.grad.add_(keep[name] * self._noise(p, generator))

    def _utilities(self) -> dict[str, Tensor]:
        """Take this step's gradients into the traces; the corrected traces of the weights that have one."""
        traces, steps = self.state.setdefault("utility", {}), self.state.setdefault("steps", {})
        corrected = {}
        for name, p in self.model.named_parameters():
            if p.grad is None:
                continue
            if name not in traces:
                traces[name], steps[name] = torch.zeros_like(p), 0
            steps[name] += 1
            traces[name].mul_(self.beta).addcmul_(p.grad, p, value=self.beta - 1)
            corrected[name] = traces[name] / (1 - self.beta ** steps[name])
        return corrected

    def _noise(self, like: Tensor, generator: torch.Generator | None) -> Tensor | float:
        if generator is None:
            return 0.0
        return torch.randn(like.shape, generator=generator).to(like) * self.sigma


def scaled(utilities: Mapping[str, Tensor], scaling: Literal["global", "local"]) -> dict[str, Tensor]:
    """Utilities as shares between 0 and 1; 0.5 is none at all."""
    if not utilities:
        return {}
    if scaling == "local":
        norms = {name: u.norm(dim=-1, keepdim=True) for name, u in utilities.items()}
        return {name: torch.sigmoid(_ratio(u, norms[name])) for name, u in utilities.items()}
    best = torch.stack([u.max() for u in utilities.values()]).max()
    if best <= 0:
        best = torch.stack([u.abs().max() for u in utilities.values()]).max()
    return {name: torch.sigmoid(_ratio(u, best)) for name, u in utilities.items()}


def _ratio(utility: Tensor, scale: Tensor) -> Tensor:
    """The quotient; 0 where the scale is 0, because then the utility is 0, too."""
    return torch.where(scale > 0, utility / torch.where(scale > 0, scale, 1.0), 0.0)
