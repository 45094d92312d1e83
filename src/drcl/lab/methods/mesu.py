"""MESU: metaplasticity from synaptic uncertainty. Each weight's own variance is its learning rate, and shrinks with
what it has learned; a finite memory lets it recover. No task boundaries are needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from drcl.lab.common import seeds
from drcl.lab.common.fields import option
from drcl.lab.methods import _checks, _gaussian
from drcl.lab.methods.base import Abilities, Batch, Knob, Setting
from drcl.lab.networks import Network
from drcl.lab.streams import Task


class Metaplastic(torch.optim.Optimizer):
    """MESU's rule on pairs (mean, sigma). `lr` multiplies both increments; the method itself has 1."""

    def __init__(
        self,
        pairs: Iterable[tuple[nn.Parameter, nn.Parameter]],
        *,
        c_mu: float,
        c_sigma: float,
        memory: float,
        prior_sigma: float,
        ratio_max: float,
        sigma_range: tuple[float, float],
        prior_mu: float = 0.0,
    ) -> None:
        rule = dict(c_mu=c_mu, c_sigma=c_sigma, memory=memory, prior_mu=prior_mu, prior_sigma=prior_sigma)
        limits = dict(ratio_max=ratio_max, sigma_min=sigma_range[0], sigma_max=sigma_range[1])
        super().__init__([{"params": list(pair)} for pair in pairs], {"lr": 1.0} | rule | limits)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            mu, sigma = group["params"]
            if mu.grad is None:
                continue
            slope = 0.0 if sigma.grad is None else sigma.grad  # without noise nothing depends on sigma
            variance = sigma.square()
            forget = 1 / (group["memory"] * group["prior_sigma"] ** 2)
            pull = variance * mu.grad + variance * (mu - group["prior_mu"]) * forget
            widen = variance * slope + sigma * (variance - group["prior_sigma"] ** 2) * forget
            limit = group["ratio_max"] * sigma
            mu.sub_(torch.clamp(group["lr"] * group["c_mu"] * pull, -limit, limit))
            sigma.sub_(torch.clamp(group["lr"] * group["c_sigma"] * widen, -limit, limit))
            sigma.clamp_(group["sigma_min"], group["sigma_max"])
        return loss


@dataclass
class MESU(_gaussian.Bayesian):
    """Bonnet, Cottart, Hirtzlin, Januel, Dalgaty, Vianello, Querlioz, "Bayesian continual learning and forgetting in
    neural networks", Nature Communications 2025 (arXiv 2504.13569).

    Every weight and bias, heads included, is N(mu, sigma^2). C is the loss summed over the batch, its mean over
    `samples` draws of all weights. With the prior N(0, prior_sigma^2) and a memory of N batches a step is

        mu    <- mu    - c_mu    (sigma^2 dC/dmu    + sigma^2 mu / (N prior_sigma^2))
        sigma <- sigma - c_sigma (sigma^2 dC/dsigma + sigma (sigma^2 - prior_sigma^2) / (N prior_sigma^2)),

    each increment at most ratio_max * sigma, and sigma within its range. The derivation has c_mu = 1, c_sigma = 1/2;
    the defaults are the authors' for CIFAR, tuned to N and to the number of steps. Answers are the mean of the
    log-probabilities of `test_samples` draws, always the same ones; with 0, those of the means.

    The run's learning rate, momentum and optimizer are not used; a schedule scales both increments. Means start uniform
    within sqrt(2 / fan_in), sigma at sigma_start / sqrt(units). Norm layers are not supported.
    """

    name: ClassVar[str] = "mesu"
    about: ClassVar[str] = "metaplasticity from synaptic uncertainty, without task boundaries (2025)"
    abilities: ClassVar[Abilities] = Abilities(task_ends=False, norms="none", optimizer="own", weight_decay=False)
    tunes: ClassVar[Knob | None] = Knob("c_sigma", 1.0, 1e3)

    samples: int = option(8, "draws of the weights per step")
    test_samples: int = option(8, "number of draws over which an answer is averaged; 0 answers with the means")
    c_mu: float = option(5.0, "factor on the step of the means")
    c_sigma: float = option(132.0, "factor on the step of the standard deviations")
    memory: float = option(1e6, "number of batches remembered, N; inf never forgets")
    prior_sigma: float = option(1.0, "standard deviation that forgetting returns to")
    ratio_max: float = option(0.02, "largest increment, in units of sigma")
    sigma_min: float = option(1e-6, "smallest standard deviation")
    sigma_max: float = option(1.0, "largest standard deviation")
    sigma_start: float = option(0.5, "first standard deviation, divided by the root of the layer's number of units")
    noise: bool = option(True, "draw weights during training; false trains only the means")

    def check(self) -> None:
        _checks.at_least(self.name, "samples", self.samples, 1, "the paper has 8")
        _checks.at_least(self.name, "test_samples", self.test_samples, 0, "0 answers with the means")
        for word in ("c_mu", "c_sigma"):
            _checks.at_least(self.name, word, getattr(self, word), 0.0, "0 keeps it where it is")
        for word in ("memory", "prior_sigma", "ratio_max", "sigma_start", "sigma_min"):
            if not getattr(self, word) > 0:
                raise ValueError(f"mesu: {word}={getattr(self, word)} must be above 0")
        if not self.sigma_min < self.sigma_max:
            raise ValueError(f"mesu: sigma_max={self.sigma_max} must be above sigma_min={self.sigma_min}")

    def build(self, model: Network, setting: Setting) -> Network:
        super().build(model, setting)
        with seeds.seeded_torch(setting.seed, "mesu", "start"):
            self.layers = _gaussian.convert(model, dict(model.named_parameters()), self._start, "plain")
        self._size = setting.batch
        return model

    def _start(self, layer: nn.Linear | nn.Conv2d) -> float:
        bound = (2 / layer.weight[0].numel()) ** 0.5
        nn.init.uniform_(layer.weight, -bound, bound)
        return min(self.sigma_max, max(self.sigma_min, self.sigma_start / len(layer.weight) ** 0.5))

    def optimizer(self, task: Task) -> torch.optim.Optimizer:
        trained = self.parameters(task)
        pairs = [(p, trained[f"{name}_scale"]) for name, p in trained.items() if f"{name}_scale" in trained]
        return Metaplastic(
            pairs,
            c_mu=self.c_mu,
            c_sigma=self.c_sigma,
            memory=self.memory,
            prior_sigma=self.prior_sigma,
            ratio_max=self.ratio_max,
            sigma_range=(self.sigma_min, self.sigma_max),
        )

    def before_step(self, batch: Batch) -> Batch:
        self._size = len(batch)
        return batch

    def loss(self, batch: Batch) -> Tensor:
        if not self.noise:
            return self.cross_entropy(batch)
        self.gradients += self.samples - 1
        generator = self.generator("weights")
        with _gaussian.noise(self.layers.values(), generator):
            return torch.stack([self.cross_entropy(batch) for _ in range(self.samples)]).mean()

    def after_backward(self) -> None:
        """From the mean over the batch to the sum, in which the rule is written."""
        for p in self.model.parameters():
            if p.grad is not None:
                p.grad.mul_(self._size)

    def predict(self, x: Tensor, task: Task) -> Tensor:
        if not self.test_samples:
            return self.model(x, task.head)
        return self.drawn(x, task, self.test_samples).mean(0)
