"""BAN: Bayesian adaptation of depth and width. A stick over the layers decides how much of each a task uses. Weights
that earlier tasks use are held by their posterior; all others are free."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.distributions import Beta, kl_divergence
from torch.nn import functional as F

from drcl.lab.common import seeds
from drcl.lab.common.fields import option
from drcl.lab.methods import _checks
from drcl.lab.methods._structure import Structured
from drcl.lab.methods.base import Abilities, Knob, Setting
from drcl.lab.networks import Network
from drcl.lab.networks.norms import judging
from drcl.lab.streams import Task


@dataclass
class BAN(Structured):
    """Thapa, Li, "Bayesian Adaptation of Network Depth and Width for Continual Learning", ICML 2024.

    Each layer l of the trunk has weights W ~ N(mu, sigma^2) and, for every task anew, masks Z on them:

        nu_l ~ Beta(a_l, b_l),    pi_l = nu_1 nu_2 ... nu_l      so deeper layers are used less
        Z_mn ~ Bernoulli(sigmoid(gamma_mn + logit pi_l)),        with the prior Bernoulli(pi_l)

    a convolution has one entry for each pair of channels. h_l = act((W * Z) h_{l-1}) + h_{l-1} where a linear layer has
    as many units as inputs (`residual`), and without the sum elsewhere; a bias is multiplied by the largest Z of its
    unit. For a task of n examples the loss of the first stage is

        mean cross-entropy + kl / n * (KL(W) + KL(nu) + KL(Z)),

    the mean over `samples` draws, Z relaxed as sigmoid((logit + logistic noise) / temperature). KL(W) is taken to the
    posterior of the task before, over the weights that the mask of some earlier task holds; all others, and so the
    whole first task, are free. KL(nu) is taken to the posterior of the sticks before the task, at first to Beta(a, b).

    Then one binary mask is drawn from the mean probabilities and kept, in one bit per entry. The second stage continues
    with it, on cross-entropy and KL(W) alone, so a task costs twice its steps. At the end the posteriors become priors,
    gamma begins anew at 0 and Adam's rate for the weights is multiplied by `lr_decay`. A task is answered under its own
    mask, with the mean probability of `test_samples` draws of W, always the same ones.

    With `best`, and where there is validation data, each stage ends with a copy of the weights of the epoch that was
    best on it. In the authors' code that copy is the network itself, so nothing is restored; the KL of the masks counts
    the last layer alone, the second stage's rate falls tenfold every epoch, and answers average logits. This
    implementation follows the paper. Heads are plain. Norm layers are not supported, and the task must be known.

    The defaults are the paper's for CIFAR-100 with ten tasks; for permuted MNIST it has a=75, b=300, temperature 0.3
    and the rates 0.02 and 0.03.
    """

    name: ClassVar[str] = "ban"
    about: ClassVar[str] = "Bayesian weights and masks that adapt depth and width, in two stages (ICML 2024)"
    abilities: ClassVar[Abilities] = replace(Structured.abilities, branches=False)  # inputs are added to outputs
    tunes: ClassVar[Knob | None] = Knob("kl")

    kl: float = option(0.1, "factor on all KL terms; 1 is the variational bound")
    sigma_start: float = option(1e-4, "first standard deviation of the weights")
    adam_lr: float | None = option(0.003, "learning rate of Adam, as in the paper; none: the run's own optimizer")
    structure_lr: float = option(0.2, "learning rate of sticks and offsets")
    a: float = option(300.0, "first parameter of the sticks' Beta distribution")
    b: float = option(200.0, "second parameter of the sticks' Beta distribution")
    heat: float = option(0.1, "temperature of the relaxed masks")
    lr_decay: float = option(0.85, "factor on Adam's rate for the weights from task to task")
    residual: bool = option(True, "add a linear layer's input to its output where both are equally wide")
    best: bool = option(True, "end each stage with the weights of the epoch that was best on validation data, if any")

    def check(self) -> None:
        super().check()
        _checks.positive(self.name, a=self.a, b=self.b, heat=self.heat)
        if not 0 < self.lr_decay <= 1:
            raise ValueError(f"ban: lr_decay={self.lr_decay}: give a number above 0 and at most 1")

    def build(self, model: Network, setting: Setting) -> Network:
        super().build(model, setting)
        if self.residual:
            add_shortcuts(_checks.chain(self.name, model))
        return model

    def rate(self, task: Task) -> float:
        return super().rate(task) * self.lr_decay**task.index

    # ---- sticks

    def first_sticks(self) -> dict[str, Tensor]:
        count, device = len(self.layers), self.setting.device
        usual = {word: torch.full((count,), getattr(self, word), device=device) for word in ("a", "b")}
        return self.state.get("sticks", usual)

    def posterior(self) -> Beta:
        """Of the sticks, one for each layer."""
        a, b = (F.softplus(self.structure[word]).cpu() for word in ("a", "b"))
        return Beta(a, b, validate_args=False)

    def log_sticks(self, generator: torch.Generator | None) -> dict[str, Tensor]:
        found = self.posterior()
        if generator is None:
            nu = found.mean
        else:
            # torch draws Beta variables from its global generator only.
            with seeds.seeded_torch(int(torch.randint(2**62, (), generator=generator)), "sticks"):
                nu = found.rsample()
        log_pi = torch.cumsum(nu.clamp(min=torch.finfo(nu.dtype).tiny).log(), 0)
        return {name: log_pi[number].to(layer.weight) for number, (name, layer) in enumerate(self.layers.items())}

    def stick_divergence(self) -> Tensor:
        sticks = self.first_sticks()
        prior = Beta(sticks["a"].cpu(), sticks["b"].cpu(), validate_args=False)
        return kl_divergence(self.posterior(), prior).sum().to(self.setting.device)

    @torch.no_grad()
    def keep_sticks(self) -> None:
        self.state["sticks"] = {word: F.softplus(self.structure[word]).clone() for word in ("a", "b")}

    # ---- masks

    def temperature(self) -> float:
        return self.heat

    def settled(self, generator: torch.Generator) -> dict[str, Tensor]:
        masks: dict[str, Tensor] = {}
        for name, prior in self.odds(None).items():
            chance = torch.sigmoid(self.offset(name) + prior)
            masks[name] = (torch.rand(chance.shape, generator=generator).to(chance) < chance).to(chance)
        return masks

    # ---- the best weights of a stage

    def optimizer(self, task: Task) -> torch.optim.Optimizer:
        self._task = task  # the learner makes an optimizer at the start of a stage, and also after a resume
        return super().optimizer(task)

    def after_step(self) -> None:
        at = self.at
        ends = at.batch + 1 == at.batches or at.step + 1 == at.steps
        if not (self.best and ends and len(self._task.valid)):
            return
        score = self.validation_accuracy(self._task)
        if score >= self.state.get("best", {}).get("score", 0.0):  # if equal, the later one has trained longer
            weights = {name: p.detach().clone() for name, p in self.parameters(self._task).items()}
            self.state["best"] = {"score": score, "weights": weights}

    @torch.no_grad()
    def validation_accuracy(self, task: Task) -> float:
        hits, device = 0, self.setting.device
        with judging(self.model):
            for x, y in task.valid.batches(256, augment=False):
                hits += int((self.predict(x.to(device), task).argmax(1) == y.to(device)).sum())
        return hits / len(task.valid)

    @torch.no_grad()
    def restore(self) -> None:
        """Put the best weights of the stage back."""
        kept = self.state.pop("best", None)
        if kept is not None:
            own = dict(self.model.named_parameters())
            for name, weight in kept["weights"].items():
                own[name].copy_(weight)

    def before_stage(self, task: Task, stage: int) -> None:
        self.restore()
        super().before_stage(task, stage)

    def after_task(self, task: Task) -> None:
        self.restore()
        super().after_task(task)


class Kept(nn.Module):
    """Passes its input on and remembers it for the `Sum` that follows."""

    def __init__(self) -> None:
        super().__init__()
        self.value: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.value = x
        return x


class Sum(nn.Module):
    """Adds the input that `Kept` has remembered."""

    def __init__(self, kept: Kept) -> None:
        super().__init__()
        self.kept = (kept,)  # in a tuple, so that it does not become a submodule

    def forward(self, x: Tensor) -> Tensor:
        value, self.kept[0].value = self.kept[0].value, None
        assert value is not None
        return x + value


def add_shortcuts(trunk: nn.Sequential) -> None:
    """Around the block of each linear layer with as many units as inputs: the layer and all up to the next one."""
    placed: OrderedDict[str, Any] = OrderedDict()
    waiting: tuple[str, Kept] | None = None

    def close() -> None:
        nonlocal waiting
        if waiting is not None:
            name, kept = waiting
            placed[f"{name}_sum"], waiting = Sum(kept), None

    for name, part in trunk.named_children():
        if isinstance(part, nn.Linear | nn.Conv2d | nn.Flatten):
            close()
        if isinstance(part, nn.Linear) and part.in_features == part.out_features:
            waiting = (name, Kept())
            placed[f"{name}_kept"] = waiting[1]
        placed[name] = part
    close()
    for name in list(placed):
        if hasattr(trunk, name):
            delattr(trunk, name)
    for name, part in placed.items():
        trunk.add_module(name, part)
