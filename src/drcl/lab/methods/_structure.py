"""Bayesian methods that learn which weights a task uses: normal weights, a mask for each task, two stages per task.

Stage 1 draws masks from relaxed Bernoulli variables whose odds fall along a broken stick and are shifted by an offset
for each entry. Stage 2 trains the weights under the resulting binary mask. A subclass defines the sticks and how a
binary mask is derived from them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from drcl.lab.common import seeds
from drcl.lab.common.fields import option
from drcl.lab.methods import _checks, _gaussian
from drcl.lab.methods.base import Abilities, Batch, Method, Setting
from drcl.lab.methods.wsn import pack, unpack
from drcl.lab.networks import Network
from drcl.lab.streams import Task

# Probabilities this close to 0 and 1 mean never and always; closer, their log odds would be infinite.
SURE = 1e-6


@dataclass
class Structured(Method):
    """What IBPCL and BAN share. An entry of a mask belongs to one weight of a linear layer, and to all weights between
    two channels of a convolution."""

    abilities: ClassVar[Abilities] = Abilities(task_ids=True, passes=2, norms="none", weight_decay=False)
    stages: ClassVar[int] = 2

    kl: float = option(1.0, "factor on all KL terms; 1 is the variational bound")
    samples: int = option(2, "draws of masks and weights in each step")
    test_samples: int = option(10, "number of weight draws over which an answer is averaged; 0 answers with the means")
    sigma_start: float = option(0.01, "first standard deviation of the weights")
    adam_lr: float | None = option(1e-3, "learning rate of Adam, as in the paper; none: the run's own optimizer")
    structure_lr: float = option(0.1, "learning rate of sticks and offsets")

    def check(self) -> None:
        _checks.not_negative(self.name, kl=self.kl)
        _checks.at_least_one(self.name, samples=self.samples)
        _checks.at_least(self.name, "test_samples", self.test_samples, 0, "0 answers with the means")
        _checks.positive(self.name, sigma_start=self.sigma_start, structure_lr=self.structure_lr)
        _checks.adam_lr(self.name, self.adam_lr)

    def build(self, model: Network, setting: Setting) -> Network:
        super().build(model, setting)
        self.layers = _gaussian.convert(model, self.protected(), lambda layer: self.sigma_start)
        learned = nn.ParameterDict()
        for name, layer in self.layers.items():
            shape = [*layer.weight.shape[:2], *[1] * (layer.weight.dim() - 2)]
            learned[key(name, "offset")] = nn.Parameter(layer.weight.new_zeros(shape))
        for name, start in self.first_sticks().items():
            learned[name] = nn.Parameter(softplus_inverse(start).to(next(iter(self.layers.values())).weight))
        # Kept outside the trunk: they are not weights and must not count when weights are compared.
        model.add_module("structure", learned)
        self._union: dict[str, Tensor] = {}
        self._union_of = 0
        return model

    # ---- what a subclass adds

    def first_sticks(self) -> dict[str, Tensor]:
        """The positive parameters of the sticks at the start of the next task, by name: from its own options at first,
        from ``self.state`` later."""
        raise NotImplementedError

    def log_sticks(self, generator: torch.Generator | None) -> dict[str, Tensor]:
        """For each layer log pi, in a shape that spreads over its mask: drawn, or of the mean without a generator."""
        raise NotImplementedError

    def stick_divergence(self) -> Tensor:
        """KL of the sticks to their prior."""
        raise NotImplementedError

    def temperature(self) -> float:
        """Of the relaxed masks; towards 0 they become binary."""
        raise NotImplementedError

    def settled(self, generator: torch.Generator) -> dict[str, Tensor]:
        """The binary masks that the current structure represents."""
        raise NotImplementedError

    def keep_sticks(self) -> None:
        """At the end of a task, set the state from which the next one starts."""
        raise NotImplementedError

    # ---- a task

    def before_task(self, task: Task) -> None:
        self.state["examples"] = len(task.train)
        with torch.no_grad():
            for name in self.layers:
                self.offset(name).zero_()
            for name, start in self.first_sticks().items():
                self.structure[name].copy_(softplus_inverse(start))

    def before_stage(self, task: Task, stage: int) -> None:
        if stage == 1:
            self.state["mask"] = {name: pack(mask.bool()) for name, mask in self.current().items()}

    def parameters(self, task: Task) -> dict[str, nn.Parameter]:
        """The structure is learned only in the first stage."""
        trained = super().parameters(task)
        if self.at.stage == 0:
            trained |= {f"structure.{name}": p for name, p in self.structure.items()}
        return trained

    def optimizer(self, task: Task) -> torch.optim.Optimizer:
        trained = self.parameters(task)
        rate = self.setting.lr if self.adam_lr is None else self.rate(task)
        groups: list[dict[str, Any]] = []
        for chosen, lr in ((False, rate), (True, self.structure_lr)):
            own = [(name, p) for name, p in trained.items() if name.startswith("structure.") == chosen]
            if own:
                groups.append({"params": own, "lr": lr})
        return self.setting.make_optimizer(groups) if self.adam_lr is None else torch.optim.Adam(groups)

    def rate(self, task: Task) -> float:
        """Adam's learning rate for the weights of a task."""
        assert self.adam_lr is not None
        return self.adam_lr

    def after_task(self, task: Task) -> None:
        self.state.setdefault("masks", {})[str(task.index)] = self.state.pop("mask")
        self.state["old"] = _gaussian.snapshot(self.layers)
        self.keep_sticks()

    # ---- a step

    def loss(self, batch: Batch) -> Tensor:
        self.gradients += self.samples - 1
        generator = self.generator("draws")
        total = self.weight_divergence()
        fixed = self.fixed()
        if fixed is None:
            total = total + self.stick_divergence()
        fits: list[Tensor] = []
        for _ in range(self.samples):
            masks = fixed
            if masks is None:
                masks, divergence = self.draw(generator, self.temperature())
                total = total + divergence / self.samples
            with _gaussian.masked(self.layers, masks), _gaussian.noise(self.layers.values(), generator):
                fits.append(self.cross_entropy(batch))
        return torch.stack(fits).mean() + self.kl / self.state["examples"] * total

    def draw(self, generator: torch.Generator, temperature: float) -> tuple[dict[str, Tensor], Tensor]:
        """Relaxed masks for one draw of the sticks, and the KL of the masks given those sticks."""
        divergence = torch.zeros((), device=self.setting.device)
        masks: dict[str, Tensor] = {}
        for name, prior in self.odds(generator).items():
            offset = self.offset(name)
            logits = offset + prior
            u = torch.rand(logits.shape, generator=generator).clamp(SURE, 1 - SURE)
            masks[name] = torch.sigmoid((logits + torch.logit(u).to(logits)) / temperature)
            divergence = divergence + bernoulli_kl(logits, prior.expand_as(logits))
        return masks, divergence

    def weight_divergence(self) -> Tensor:
        """KL of the weights to the posterior of the task before, over those that some finished task uses."""
        total = torch.zeros((), device=self.setting.device)
        for name, used in self.union().items():
            layer, old = self.layers[name], self.state["old"][name]
            weight_sigma, bias_sigma = layer.sigma()
            total = total + _gaussian.kl(layer.weight, weight_sigma, old["weight"], old["weight_sigma"], used)
            if layer.bias is not None and bias_sigma is not None:
                units = _gaussian.unit_mask(used)
                total = total + _gaussian.kl(layer.bias, bias_sigma, old["bias"], old["bias_sigma"], units)
        return total

    # ---- answers

    def predict(self, x: Tensor, task: Task) -> Tensor:
        with _gaussian.masked(self.layers, self.mask_of(task.index)):
            if not self.test_samples:
                return self.model(x, task.head)
            generator = torch.Generator().manual_seed(seeds.derive(self.setting.seed, self.name, "answer"))
            with _gaussian.noise(self.layers.values(), generator):
                drawn = [F.log_softmax(self.model(x, task.head), dim=1) for _ in range(self.test_samples)]
        return torch.logsumexp(torch.stack(drawn), 0) - math.log(len(drawn))

    # ---- masks and sticks

    @property
    def structure(self) -> nn.ParameterDict:
        found = self.model.structure
        assert isinstance(found, nn.ParameterDict)
        return found

    def offset(self, layer: str) -> nn.Parameter:
        return self.structure[key(layer, "offset")]

    def odds(self, generator: torch.Generator | None) -> dict[str, Tensor]:
        """For each layer log(pi / (1 - pi))."""
        found: dict[str, Tensor] = {}
        for name, log_pi in self.log_sticks(generator).items():
            log_pi = log_pi.clamp(math.log(SURE), math.log1p(-SURE))
            found[name] = log_pi - torch.log(-torch.expm1(log_pi))
        return found

    @torch.no_grad()
    def current(self) -> dict[str, Tensor]:
        """The binary masks of the current task if its first stage ended now; the same structure always gives the same
        masks. A layer that would be left without any entry keeps its most likely unit; otherwise nothing could pass."""
        seed = seeds.derive(self.setting.seed, self.name, "mask", self.at.task)
        masks = self.settled(torch.Generator().manual_seed(seed))
        for name, prior in self.odds(None).items():
            if not masks[name].any():
                masks[name][(self.offset(name) + prior).flatten(1).mean(1).argmax()] = 1.0
        return masks

    def fixed(self) -> dict[str, Tensor] | None:
        """The masks of the second stage."""
        kept = self.state.get("mask")
        return None if kept is None else self._unpacked(kept)

    def mask_of(self, task: int) -> dict[str, Tensor]:
        """The final masks of a task; before it ends, its current ones."""
        kept = self.state.get("masks", {}).get(str(task))
        if kept is not None:
            return self._unpacked(kept)
        fixed = self.fixed()
        return self.current() if fixed is None else fixed

    def _unpacked(self, kept: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: unpack(bits, self.offset(name)).to(self.layers[name].weight) for name, bits in kept.items()}

    def union(self) -> dict[str, Tensor]:
        """1 where some finished task uses the entry. Derived from the masks, and updated with every finished task."""
        kept = self.state.get("masks", {})
        if self._union_of != len(kept):
            each = [self._unpacked(masks) for masks in kept.values()]
            self._union = {name: torch.stack([masks[name] for masks in each]).amax(0) for name in self.layers}
            self._union_of = len(kept)
        return self._union

    # ---- what is kept

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._union, self._union_of = {}, 0

    def state_bytes(self) -> int:
        """Standard deviations, sticks and offsets belong to the method, although the network contains them."""
        own = sum(p.nbytes for p in self.structure.values())
        return super().state_bytes() + _gaussian.scale_bytes(self.layers.values()) + own


def key(layer: str, word: str) -> str:
    return f"{layer.replace('.', '/')}/{word}"  # a parameter's own name may not contain a dot


def softplus_inverse(value: Tensor) -> Tensor:
    """Where softplus is `value`."""
    return value + torch.log(-torch.expm1(-value))


def bernoulli_kl(logits: Tensor, prior: Tensor) -> Tensor:
    """Sum over all entries of KL(Bernoulli(sigmoid(logits)) || Bernoulli(sigmoid(prior)))."""
    return (torch.sigmoid(logits) * (logits - prior) + F.softplus(prior) - F.softplus(logits)).sum()
