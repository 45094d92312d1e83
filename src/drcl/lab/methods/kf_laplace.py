"""Kronecker-factored Laplace approximation (Ritter, Botev, Barber 2018): EWC with whole layers instead of weights.

    L = L_task + lam/2 * sum over layers of  <D, G D A>,    D = [W b] - [W* b*]

A is the second moment of a layer's inputs (patches of a convolution), G that of its output derivatives, so that A (x) G
stands for the layer's Fisher information and D^T (A (x) G) D is the quadratic the posterior of the old tasks has there.

    summed     one anchor, the latest; A <- A + A_t and G <- G + G_t, and the product is divided by the number of tasks
               t: a sum of t products is one of t^2 terms otherwise. Exact where tasks have the same factors.
    separate   one anchor and one pair of factors for every task; the penalties add up

Parameters outside linear and convolutional layers have the penalty of EWC, with its diagonal Fisher information.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from drcl.importance import Labels
from drcl.lab.common.fields import option
from drcl.lab.methods import _checks, _kronecker, _quadratic
from drcl.lab.methods._fisher import LABELS
from drcl.lab.methods.base import Knob, Method
from drcl.lab.streams import Task


@dataclass
class KroneckerLaplace(Method):
    """Ritter, Botev, Barber, "Online Structured Laplace Approximations For Overcoming Catastrophic Forgetting", NeurIPS
    2018 (arXiv 1805.07810). Factors are means over examples, so lam takes in the number of examples, as in EWC here.

    The penalty is part of the loss and bounds the learning rate: gradient descent diverges along the steepest direction
    once lr * lam * (its curvature) > 2, or 2 (1 + momentum) with momentum. Heads of single tasks are free. The default
    lam was chosen on validation data of both digits benchmarks, some way below that limit.
    """

    name: ClassVar[str] = "kf-laplace"
    about: ClassVar[str] = "quadratic penalty by Kronecker factors of the Fisher information (NeurIPS 2018)"
    tunes: ClassVar[Knob | None] = Knob("lam")

    lam: float = option(5.0, "strength of the penalty")
    kind: Literal["summed", "separate"] = option("summed", "how the penalties of several tasks are combined")
    samples: int | None = option(1000, "training images per task for the factors; none: all")
    labels: Labels = option("sampled", LABELS)

    def check(self) -> None:
        _checks.not_negative(self.name, lam=self.lam)
        _checks.at_least_one_or_none(self.name, samples=self.samples)

    @property
    def anchors(self) -> list[dict[str, Any]]:
        """The penalties in force: weights, factors with the number of tasks in them, the diagonal of the rest."""
        return self.state.get("anchors", [])

    def penalty(self) -> Tensor:
        own, total = self.protected(), torch.zeros(())
        for anchor in self.anchors:
            rest = {name: anchor["weights"][name] for name in anchor["diagonal"]}
            total = total + _quadratic.penalty(own, rest, anchor["diagonal"], self.lam)
            for name, factors in anchor["factors"].items():
                drift = self._drift(anchor, name)
                total = total + self.lam / 2 * (drift * _curved(factors, drift)).sum()
        return total

    @torch.no_grad()
    def after_backward(self) -> None:
        own = self.protected()
        gradients = {name: p.grad for name, p in own.items() if p.grad is not None}
        for anchor in self.anchors:
            rest = {name: anchor["weights"][name] for name in anchor["diagonal"]}
            _quadratic.add_pull(own, rest, anchor["diagonal"], self.lam)
            for name, factors in anchor["factors"].items():
                if name in gradients:  # else it is not being trained
                    pull = _curved(factors, self._drift(anchor, name))
                    for key, value in _kronecker.split(pull, own, name, factors["inputs"]).items():
                        gradients[key].add_(value, alpha=self.lam)

    def after_task(self, task: Task) -> None:
        own, before = self.protected(), None
        if self.anchors and self.kind == "summed":
            old = self.anchors[0]
            bases = {name: _kronecker.from_factors(own, name, **kept) for name, kept in old["factors"].items()}
            before = _kronecker.Information(bases, old["diagonal"])
        known = _kronecker.measure(self, task, self.samples, self.labels, before, eigenvalues="product")
        factors = {
            name: {"inputs": basis.input_factor, "outputs": basis.output_factor, "count": basis.count}
            for name, basis in known.bases.items()
        }
        new = {"weights": _quadratic.copies(own), "factors": factors, "diagonal": known.diagonal}
        self.state["anchors"] = [*self.anchors, new] if self.kind == "separate" else [new]
        self._warn()

    def _drift(self, anchor: dict[str, Any], name: str) -> Tensor:
        factor = anchor["factors"][name]["inputs"]
        return _kronecker.matrix(self.protected(), name, factor) - _kronecker.matrix(anchor["weights"], name, factor)

    def _warn(self) -> None:
        """Several anchors pull together; the sum of their steepest curvatures is an upper bound."""
        steepest: dict[str, float] = {}
        for anchor in self.anchors:
            for name, kept in anchor["factors"].items():
                product = _largest(kept["inputs"]) * _largest(kept["outputs"]) / kept["count"]
                steepest[name] = steepest.get(name, 0.0) + product
        momentum = self.setting.momentum if self.setting.optimizer == "sgd" else 0.0
        reach = self.setting.lr * self.lam * max(steepest.values(), default=0.0)
        if self.setting.optimizer == "sgd" and reach > 2 * (1 + momentum):
            warnings.warn(
                f"kf-laplace: lr * lam * (largest curvature) = {reach:.3g} is above {2 * (1 + momentum):.3g}, so the "
                f"penalty alone can make the steps grow: lower lam (now {self.lam:g}) or lr (now {self.setting.lr:g})",
                stacklevel=2,
            )


def _curved(factors: dict[str, Any], drift: Tensor) -> Tensor:
    return _kronecker.curved(factors["inputs"], factors["outputs"], drift) / factors["count"]


def _largest(factor: Tensor) -> float:
    """The largest eigenvalue of a factor."""
    return float(factor.max() if factor.ndim == 2 else torch.linalg.eigvalsh(factor.double()).max())
