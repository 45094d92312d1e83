"""UCL: uncertainty-based continual learning. One standard deviation per unit says how freely its weights may move."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from drcl.lab.common import seeds
from drcl.lab.common.fields import option
from drcl.lab.methods import _checks, _gaussian
from drcl.lab.methods.base import Abilities, Batch, Knob, Setting
from drcl.lab.networks import Network
from drcl.lab.streams import Task


@dataclass
class UCL(_gaussian.Bayesian):
    """Ahn, Cha, Lee, Moon, "Uncertainty-based Continual Learning with Adaptive Regularization", NeurIPS 2019.

    A layer has means m, plain biases b and one sigma per unit; training draws W = m + sigma * noise once per batch;
    answers use m. It starts with the variance V = 2 / fan_in (convolution: 2 / fan_out), `ratio` of it as sigma0^2 and
    the rest as uniform m. With s = sigma0 / sigma_old of a layer, s' that of the layer before (0 before the first) and
    B the batch size, the loss gains

        a / (2B) sum |max(s, s') (m - m_old)|^2 + |s (b - b_old)|^2
        + 1 / B  sum sigma0^2 (|m_old^2 / sigma_old^2 (m - m_old)|_1 + |b_old^2 / sigma_old^2 (b - b_old)|_1)
        + beta / (2B) sum over units of r - ln r + sigma^2 - ln sigma^2,   r = sigma^2 / sigma_old^2.

    In the first task "old" is the start, a = `alpha` and the second line is absent; later it is the end of the task
    before and a = 1. Note that the batch size, not the size of the data, sets the balance. Heads of single tasks are
    plain and free; a head that all tasks share is one more layer.

    The defaults are the paper's for permuted MNIST; for ten tasks of CIFAR-100 it has beta=0.002, ratio=0.125,
    rho_lr=0.01 and alpha=5.
    """

    name: ClassVar[str] = "ucl"
    about: ClassVar[str] = "uncertainty-based regularisation with one sigma per unit (NeurIPS 2019)"
    abilities: ClassVar[Abilities] = Abilities(norms="none", branches=False, weight_decay=False)
    tunes: ClassVar[Knob | None] = Knob("strength")

    beta: float = option(0.03, "weight of the term that changes sigma")
    ratio: float = option(0.5, "share of the first variance that is noise, in (0, 1)")
    alpha: float = option(0.01, "pull towards the first weights during the first task")
    strength: float = option(
        1.0, "factor on both pulls towards the old weights from the second task on; the paper has 1"
    )
    rho_lr: float = option(1e-3, "learning rate of sigma (of rho, sigma = softplus(rho))")
    adam_lr: float | None = option(1e-3, "learning rate of Adam, as in the paper; none: the run's own optimizer")
    noise: bool = option(True, "draw weights during training; false trains only the means")

    def check(self) -> None:
        _checks.inside(self.name, "ratio", self.ratio, 0.0, 1.0, "the paper has 0.125 to 0.5")
        for word in ("beta", "alpha", "strength", "rho_lr"):
            _checks.at_least(self.name, word, getattr(self, word), 0.0, "0 switches it off")
        _checks.adam_lr(self.name, self.adam_lr)

    def build(self, model: Network, setting: Setting) -> Network:
        super().build(model, setting)
        with seeds.seeded_torch(setting.seed, "ucl", "start"):
            self.layers = _gaussian.convert(model, self.protected(), self._start, per_unit=True)
        self.first = {name: layer.sigma()[0].detach().flatten() for name, layer in self.layers.items()}
        self._size = setting.batch
        return model

    def _start(self, layer: nn.Linear | nn.Conv2d) -> float:
        """Draw new means and return the size of sigma."""
        fan = layer.weight[0].numel() if isinstance(layer, nn.Linear) else layer.weight[:, 0].numel()
        variance = 2.0 / fan
        bound = (3 * (1 - self.ratio) * variance) ** 0.5
        nn.init.uniform_(layer.weight, -bound, bound)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
        return (self.ratio * variance) ** 0.5

    def optimizer(self, task: Task) -> torch.optim.Optimizer:
        trained = self.parameters(task)
        rho = {id(layer.weight_scale) for layer in self.layers.values()}
        plain = [(name, p) for name, p in trained.items() if id(p) not in rho]
        scales = [(name, p) for name, p in trained.items() if id(p) in rho]
        rate = self.setting.lr if self.adam_lr is None else self.adam_lr
        groups = [{"params": plain, "lr": rate}, {"params": scales, "lr": self.rho_lr}]
        return self.setting.make_optimizer(groups) if self.adam_lr is None else torch.optim.Adam(groups)

    def before_task(self, task: Task) -> None:
        if not self.state:
            self.state["old"] = _gaussian.snapshot(self.layers)

    def before_step(self, batch: Batch) -> Batch:
        self._size = len(batch)
        return batch

    def loss(self, batch: Batch) -> Tensor:
        generator = self.generator("weights") if self.noise else None
        with _gaussian.noise(self.layers.values(), generator):
            fit = self.cross_entropy(batch)
        return fit + self.penalty() / self._size

    def penalty(self) -> Tensor:
        """Everything that is added to the mean loss, times the batch size."""
        later = self.at.task > 0
        pull = self.strength if later else self.alpha
        total = torch.zeros((), device=self.setting.device)
        before: Tensor | None = None
        for name, layer in self.layers.items():
            old, first, sigma = self.state["old"][name], self.first[name], layer.sigma()[0].flatten()
            before_sigma = old["weight_sigma"].flatten()
            ties = first.to(sigma) / before_sigma
            rows = [-1] + [1] * (layer.weight.dim() - 1)
            strongest = ties.view(rows)
            if before is not None:
                # After flattening, each channel is a run of neighbouring inputs.
                inputs = before.repeat_interleave(layer.weight.shape[1] // len(before))
                strongest = torch.maximum(strongest, inputs.view([1, -1] + [1] * (layer.weight.dim() - 2)))
            moved = layer.weight - old["weight"]
            quadratic = (strongest * moved).square().sum()
            shrunk = (old["weight"].square() / old["weight_sigma"].square() * moved).abs().flatten(1).sum(1)
            if layer.bias is not None:
                change = layer.bias - old["bias"]
                quadratic = quadratic + (ties * change).square().sum()
                shrunk = shrunk + (old["bias"].square() / before_sigma.square() * change).abs()
            total = total + pull / 2 * quadratic + self.beta / 2 * spread(sigma, before_sigma)
            if later:
                total = total + self.strength * (first.to(sigma).square() * shrunk).sum()
            before = ties
        return total

    def after_task(self, task: Task) -> None:
        self.state["old"] = _gaussian.snapshot(self.layers)


def spread(sigma: Tensor, old: Tensor) -> Tensor:
    """The term that moves sigma: it is smallest at sigma^2 = 2 old^2 / (1 + old^2), so it widens narrow units."""
    ratio = (sigma / old).square()
    return (ratio - ratio.log() + sigma.square() - sigma.square().log()).sum()
