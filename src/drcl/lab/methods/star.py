"""STAR (Eskandar, Imtiaz, Hill, Wang, Dy, ICLR 2025) on experience replay: keep answers stable where they are easiest
to lose.

    x*      remembered examples that are answered correctly now;   q = softmax f_w(x*), held fixed
    g       gradient of KL(q || f(x*)) at w + noise
    delta   gamma * ||w_l|| * g_l / ||g_l||     for each matrix or kernel l; none for biases and norm layers
    loss    L_ER(w) + lam * KL(q || f_{w + delta}(x*))

The gradient of the second term is taken at w + delta and added to that of the first; then the weights are put back bit
for bit. At w itself the KL is at its minimum and has no gradient to follow, so the ascent starts at a random point
`start` * ||w_l|| away: noise too small for float32 would leave a direction made of rounding.

The term is taken without dropout, and norm layers use the statistics of its examples and write none. (With running
statistics they would not follow the perturbation: in a deep network it would grow from layer to layer until training
diverges.) With fewer than two correct examples the term is left out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from drcl.lab.common.fields import option
from drcl.lab.methods import _checks
from drcl.lab.methods.base import Batch, Knob
from drcl.lab.methods.er import ER
from drcl.lab.networks.norms import by_batch, judging

Parameters = Mapping[str, nn.Parameter]


@dataclass
class STAR(ER):
    """Costs two backward and four forward passes per step in addition to ER's own."""

    name: ClassVar[str] = "star"
    about: ClassVar[str] = (
        "experience replay that keeps answers stable under the weight perturbation that harms them most"
    )
    tunes: ClassVar[Knob | None] = Knob("lam", 1e-3, 1.0)

    lam: float = option(0.01, "weight of the stability term; 0 gives plain experience replay")
    gamma: float = option(0.05, "size of the perturbation, as a share of each weight tensor's norm")
    start: float = option(0.001, "size of the noise from which the perturbation's direction is found, as such a share")

    def check(self) -> None:
        super().check()
        _checks.not_negative(self.name, lam=self.lam)
        _checks.positive(self.name, gamma=self.gamma, start=self.start)

    def after_backward(self) -> None:
        if self.lam == 0:
            return
        remembered = self.remembered(self.replay or self.setting.batch, self.generator("stability"))
        if remembered is None or len(remembered) < 2:
            return
        with judging(self.model), by_batch(self.model), torch.enable_grad():
            examples, answers = self.correct(remembered)
            if len(examples) < 2:
                return
            own = self.taught()
            with perturbed(own, self.perturbation(own, examples, answers)):
                pull = self._gradient(own, examples, answers)
        with torch.no_grad():
            for name, g in pull.items():
                p = own[name]
                p.grad = self.lam * g if p.grad is None else p.grad.add_(g, alpha=self.lam)

    def perturbation(self, own: Parameters, examples: Batch, answers: list[Tensor]) -> dict[str, Tensor]:
        """One step up the divergence from a random point nearby, as long as gamma times each tensor's norm."""
        generator = self.generator("noise")
        noise = {n: torch.randn(p.shape, generator=generator).to(p) for n, p in own.items() if p.dim() > 1}
        with perturbed(own, {n: scaled(d, own[n], self.start) for n, d in noise.items()}):
            uphill = self._gradient(own, examples, answers)
        return {name: scaled(g, own[name], self.gamma) for name, g in uphill.items() if g.dim() > 1}

    def correct(self, batch: Batch) -> tuple[Batch, list[Tensor]]:
        """The examples answered correctly and the log-probabilities of these answers, a tensor per head."""
        with torch.no_grad():
            found = self.model.by_head(batch.x, batch.heads())
            right = torch.cat([rows[logits.argmax(1) == batch.y[rows]] for rows, logits in found])
            chosen = batch.rows(right)
            if len(chosen) < 2:
                return chosen, []
            # Run these again alone: if norm layers use batch statistics, outputs depend on the rest of the batch.
            return chosen, [logits.log_softmax(1) for _, logits in self.model.by_head(chosen.x, chosen.heads())]

    def divergence(self, examples: Batch, answers: list[Tensor]) -> Tensor:
        """Mean over the examples of KL(answers || the network's answers with the weights it has now)."""
        total = examples.x.new_zeros(())
        found = self.model.by_head(examples.x, examples.heads())
        for (_, logits), before in zip(found, answers, strict=True):
            total = total + F.kl_div(logits.log_softmax(1), before, reduction="sum", log_target=True)
        return total / len(examples)

    def _gradient(self, own: Parameters, examples: Batch, answers: list[Tensor]) -> dict[str, Tensor]:
        self.gradients += 1
        found = torch.autograd.grad(self.divergence(examples, answers), list(own.values()), allow_unused=True)
        return {name: g for name, g in zip(own, found) if g is not None}


def scaled(direction: Tensor, weight: Tensor, share: float) -> Tensor:
    """The direction with `share` times the length of the weight tensor; zeros stay zeros."""
    length = direction.norm()
    factor = torch.where(length > 0, share * weight.detach().norm() / torch.where(length > 0, length, 1.0), 0.0)
    return direction * factor


@contextlib.contextmanager
def perturbed(parameters: Parameters, delta: Mapping[str, Tensor]) -> Iterator[None]:
    """Adds `delta` to the weights inside the block and restores them bit for bit afterwards, from copies."""
    kept = {name: parameters[name].detach().clone() for name in delta}
    try:
        with torch.no_grad():
            for name, d in delta.items():
                parameters[name].add_(d)
        yield
    finally:
        with torch.no_grad():
            for name, weight in kept.items():
                parameters[name].copy_(weight)
