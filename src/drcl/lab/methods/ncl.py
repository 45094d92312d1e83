"""Natural continual learning (Kao et al. 2021): the steepest step in the metric of the old tasks' precision.

The old tasks have left a normal distribution with precision Lambda and mean a, the weights after the last of them. Of
all steps of one length in the metric of Lambda, the one that lowers L_task + 1/2 (w - a)^T Lambda (w - a) most is

    step = -lr [ Lambda^-1 grad L_task + (w - a) ],

so along important directions the loss has little effect, and the pull back to a is the same everywhere. Unlike a
penalty in the loss, it has no steep directions in which it could overshoot.

With F the Fisher information of the old tasks and a prior of precision `prior` before the first of them, both for one
example, Lambda is F + prior up to a factor; the step is taken in the unit in which Lambda is 1 where F is 0:

    step = -lr [ (F / prior + 1)^-1 grad L_task + prior (w - a) ].

Directions that no task has used are trained as by SGD with the run's learning rate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from drcl.importance import Labels
from drcl.lab.common.fields import option
from drcl.lab.methods import _checks, _kronecker, _quadratic
from drcl.lab.methods._fisher import LABELS
from drcl.lab.methods.base import Abilities, Knob, Method
from drcl.lab.streams import Task


@dataclass
class NaturalContinualLearning(Method):
    """Kao, Jensen, van de Ven, Bernacchia, Hennequin, "Natural continual learning: success is a journey, not (just) a
    destination", NeurIPS 2021 (arXiv 2106.08085).

    F is (A (x) G) / t of each linear or convolutional layer, with the second moments A of its inputs and G of its
    output derivatives summed over the t tasks so far; elsewhere a diagonal. F / prior + 1 is inverted exactly in the
    eigenvectors of A and G, where the paper adds the prior to each factor. The first task trains freely. A momentum
    buffer adds up such steps. Weight decay and Adam would change their direction, so they are refused. The paper's
    prior is one over the number of a task's examples; the default was chosen on validation data of both digits
    benchmarks.
    """

    name: ClassVar[str] = "ncl"
    about: ClassVar[str] = "natural gradient in the metric of the old tasks' Kronecker factors (NeurIPS 2021)"
    abilities: ClassVar[Abilities] = Abilities(optimizer="sgd", weight_decay=False)
    tunes: ClassVar[Knob | None] = Knob("prior", 1e-6, 1.0)

    prior: float = option(3e-4, "precision of the weights before the first task; a smaller value protects more")
    samples: int | None = option(1000, "training images per task for the factors; none: all")
    labels: Labels = option("sampled", LABELS)

    def check(self) -> None:
        _checks.positive(self.name, prior=self.prior)
        _checks.at_least_one_or_none(self.name, samples=self.samples)

    @property
    def information(self) -> _kronecker.Information:
        """F of the tasks so far."""
        return _kronecker.Information.unpack(self.state.get("information", {}))

    @torch.no_grad()
    def after_backward(self) -> None:
        if not self.state:
            return
        own, known = self.protected(), self.information
        gradients = {name: p.grad for name, p in own.items() if p.grad is not None}
        for name, basis in known.bases.items():
            if name in gradients:
                along = basis.rotate(_kronecker.matrix(gradients, name, basis.input_factor))
                along.div_(basis.eigenvalues / self.prior + 1)
                _kronecker.write(basis.rotate_back(along), gradients, name, basis.input_factor)
        for name, fisher in known.diagonal.items():
            if name in gradients:
                gradients[name].div_(fisher / self.prior + 1)
        _quadratic.add_pull(own, self.state["anchor"], None, self.prior)

    def after_task(self, task: Task) -> None:
        known = _kronecker.measure(self, task, self.samples, self.labels, self.information, eigenvalues="product")
        self.state = {"anchor": _quadratic.copies(self.protected()), "information": known.pack()}
