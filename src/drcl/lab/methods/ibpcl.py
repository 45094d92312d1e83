"""IBPCL: Bayesian structural adaptation. An Indian buffet process decides which weights a task uses; those that earlier
tasks use are held by their posterior, all others are free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from drcl.lab.common.fields import option
from drcl.lab.methods import _checks
from drcl.lab.methods._structure import Structured, key
from drcl.lab.methods.base import Knob

EULER = 0.5772156649015329


@dataclass
class IBPCL(Structured):
    """Kumar, Chatterjee, Rai, "Bayesian Structural Adaptation for Continual Learning", ICML 2021 (PMLR 139:5850).

    Each layer of the trunk has weights W ~ N(mu, sigma^2) and, for every task anew, masks B on them:

        nu_k ~ Kumaraswamy(a_k, b_k)      for each unit k, with the prior Beta(alpha_k, 1)
        pi_k = nu_1 nu_2 ... nu_k         so units further back are used less
        B_kj ~ Bernoulli(sigmoid(rho_kj + logit pi_k)),   with the prior Bernoulli(pi_k)

    between input j and unit k; a convolution has one entry for each pair of channels. The layer computes with W * B and
    with the unit's bias times max_j B_kj. For a task of n examples the loss of the first stage is

        mean cross-entropy + kl / n * (KL(W) + stick_kl KL(nu) + KL(B)),

    the mean over `samples` draws. B is drawn relaxed, sigmoid((logit + logistic noise) / tau), and tau falls from
    `hot` to `cold` by the same factor each step. KL(W) is taken to the posterior of the task before, over the weights
    that the mask of some earlier task holds; all others, and so the whole first task, are free.

    Then `mask_samples` draws of B are averaged and rounded: the task's mask, kept in one bit per entry. The second
    stage continues with this mask, on cross-entropy and KL(W) alone, so a task costs twice its steps. At the end the
    posterior of W becomes prior and start of the next task, alpha_k <- max(alpha_k, a_k), and sticks and offsets begin
    anew at a = alpha, b = 1, rho = 0. A task is answered under its own mask, with the mean probability of
    `test_samples` draws of W, always the same ones.

    This follows the paper. In the authors' code, convolutions multiply the noise of W by 0, batch norm has no
    statistics when testing, and the first wide layer drops most of its inputs; this implementation does none of that.
    Heads are plain. Norm layers are not supported, and the task must be known.

    The rates are the paper's for permuted MNIST, where alpha is 30 for 200 units; for CIFAR-100 it has 4 to 16 % of the
    units, 0.001 for the weights and 0.3 for the structure.
    """

    name: ClassVar[str] = "ibpcl"
    about: ClassVar[str] = "Bayesian weights and masks from an Indian buffet process, in two stages (ICML 2021)"
    tunes: ClassVar[Knob | None] = Knob("kl")

    sigma_start: float = option(0.0067, "first standard deviation of the weights")
    adam_lr: float | None = option(0.01, "learning rate of Adam, as in the paper; none: the run's own optimizer")
    alpha: float = option(
        0.15, "units that a task is expected to use, as a share of the layer's units; at least one unit"
    )
    stick_kl: float = option(100.0, "factor on the KL of the sticks")
    hot: float = option(10.0, "temperature of the relaxed masks in the first step of a task")
    cold: float = option(0.3, "temperature in the last step of the first stage")
    mask_samples: int = option(10, "draws that are averaged and rounded to a task's mask")

    def check(self) -> None:
        super().check()
        _checks.positive(self.name, alpha=self.alpha, cold=self.cold)
        _checks.not_negative(self.name, stick_kl=self.stick_kl)
        _checks.at_least_one(self.name, mask_samples=self.mask_samples)
        if not self.cold <= self.hot < float("inf"):
            raise ValueError(f"ibpcl: hot={self.hot} must be finite and at least cold={self.cold}: the paper has 10")

    # ---- sticks

    def prior(self, layer: str) -> Tensor:
        """alpha of each unit."""
        kept = self.state.get("alpha")
        if kept is not None:
            return kept[layer]
        units = len(self.layers[layer].weight)
        return torch.full((units,), max(self.alpha * units, 1.0), device=self.setting.device)

    def first_sticks(self) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for name in self.layers:
            alpha = self.prior(name)
            found |= {key(name, "a"): alpha, key(name, "b"): torch.ones_like(alpha)}
        return found

    def shape(self, layer: str) -> tuple[Tensor, Tensor]:
        """a and b of each unit."""
        return F.softplus(self.structure[key(layer, "a")]), F.softplus(self.structure[key(layer, "b")])

    def log_sticks(self, generator: torch.Generator | None) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for name, layer in self.layers.items():
            # Only a few numbers; on the CPU, because a running sum is not reproducible on other devices.
            a, b = (t.cpu() for t in self.shape(name))
            if generator is None:
                log_nu = b.log() + torch.lgamma(1 + 1 / a) + torch.lgamma(b) - torch.lgamma(1 + 1 / a + b)
            else:
                log_nu = log_kumaraswamy(a, b, torch.rand(a.shape, generator=generator))
            log_pi = torch.cumsum(log_nu, 0).to(layer.weight)
            found[name] = log_pi.view([-1] + [1] * (layer.weight.dim() - 1))
        return found

    def stick_divergence(self) -> Tensor:
        total = torch.zeros((), device=self.setting.device)
        for name in self.layers:
            total = total + kumaraswamy_kl(*self.shape(name), self.prior(name)).sum()
        return self.stick_kl * total

    @torch.no_grad()
    def keep_sticks(self) -> None:
        self.state["alpha"] = {name: torch.maximum(self.prior(name), self.shape(name)[0]) for name in self.layers}

    # ---- masks

    def temperature(self) -> float:
        return self.hot * (self.cold / self.hot) ** (self.at.step / max(self.at.steps - 1, 1))

    def settled(self, generator: torch.Generator) -> dict[str, Tensor]:
        drawn = [self.draw(generator, self.cold)[0] for _ in range(self.mask_samples)]
        return {name: (torch.stack([d[name] for d in drawn]).mean(0) > 0.5).to(drawn[0][name]) for name in self.layers}


def log_kumaraswamy(a: Tensor, b: Tensor, u: Tensor) -> Tensor:
    """log of (1 - u^(1/b))^(1/a): for uniform u a Kumaraswamy(a, b) variable."""
    u = u.clamp(torch.finfo(u.dtype).tiny, 1 - torch.finfo(u.dtype).eps)
    return torch.log(-torch.expm1(u.log() / b)) / a


def kumaraswamy_kl(a: Tensor, b: Tensor, alpha: Tensor) -> Tensor:
    """KL(Kumaraswamy(a, b) || Beta(alpha, 1)), each."""
    mean_log = (-EULER - torch.digamma(b) - 1 / b) / a  # of the variable
    return (a - alpha) * mean_log + torch.log(a * b / alpha) - (b - 1) / b
