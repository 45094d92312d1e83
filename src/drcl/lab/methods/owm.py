"""OWM: orthogonal weights modification. Recursive least squares makes a projector for each layer from its inputs.

Every layer starts with P = 1. At the end of a task its inputs are used once more, and each input x updates

    k = P x / (alpha + x^T P x),    P <- P - k x^T P,

after which P = (1 + sum x x^T / alpha)^-1 for all x of all tasks, in any order. From the second task on a gradient G,
as a matrix [out, in], becomes G P: it almost vanishes along inputs with much more energy than alpha, and it is
unchanged where there were no inputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from drcl.lab.common.fields import option
from drcl.lab.methods import _bases, _checks
from drcl.lab.methods.base import Abilities, Knob, Method, Setting
from drcl.lab.networks import Network
from drcl.lab.streams import Task


@dataclass
class OWM(Method):
    """Zeng, Chen, Cui, Yu, "Continual learning of context-dependent processing in neural networks", Nature Machine
    Intelligence 1, 2019 (arXiv 1810.01256).

    x is the mean over `average` images, for a convolution the mean patch at each position; the paper takes the mean of
    a mini-batch, its public code lets alpha fall within a task, which weighs inputs of one random order and so is one
    alpha again. Biases, which the paper's last layers lack, count as weights of an input that is always 1. Scale and
    shift of norm layers are trained in the first task and then kept. A head that all tasks share is projected like any
    layer, heads of single tasks are free. Momentum adds up projected gradients; weight decay and Adam are refused. The
    defaults of alpha and `average` were chosen on validation data of both digits benchmarks.
    """

    name: ClassVar[str] = "owm"
    about: ClassVar[str] = "projects gradients by recursive least squares over layer inputs (Nature MI 2019)"
    abilities: ClassVar[Abilities] = Abilities(norms="unshared", optimizer="sgd", weight_decay=False)
    tunes: ClassVar[Knob | None] = Knob("alpha")

    alpha: float = option(100.0, "energy of inputs that is not protected yet; a smaller value protects more")
    average: int = option(1, "number of images whose mean forms one input")
    samples: int | None = option(1000, "training images per task for the projector; none: all")

    def check(self) -> None:
        _checks.positive(self.name, alpha=self.alpha)
        _checks.at_least_one(self.name, average=self.average)
        _checks.at_least_one_or_none(self.name, samples=self.samples)

    def build(self, model: Network, setting: Setting) -> Network:
        super().build(model, setting)
        self.layers = _bases.matrix_layers(model, self.protected())
        return model

    def parameters(self, task: Task) -> dict[str, nn.Parameter]:
        trained = super().parameters(task)
        if not self.state:
            return trained
        loose = _bases.without_inputs(self.layers, self.protected())
        return {name: p for name, p in trained.items() if name not in loose}

    def after_backward(self) -> None:
        for name, projector in self.state.get("projectors", {}).items():
            gradient = _bases.gradient(self.layers[name])
            if gradient is not None:
                _bases.write_gradient(self.layers[name], gradient @ projector)

    def after_task(self, task: Task) -> None:
        images = self.sample(task, self.samples, "inputs")
        known: dict[str, Tensor] = self.state.setdefault("projectors", {})
        for name, inputs in _bases.record(self.model, self.layers, images, task.head, self.average).items():
            weight = self.layers[name].weight
            old = known[name].to(inputs) if name in known else torch.eye(len(inputs)).to(inputs)
            known[name] = update(old, inputs, self.alpha).to(weight)


def update(projector: Tensor, inputs: Tensor, alpha: float) -> Tensor:
    """The projector after all columns of `inputs`; taking them one at a time gives the same."""
    seen = projector @ inputs
    inner = inputs.T @ seen
    inner.diagonal().add_(alpha)
    found = projector - seen @ torch.linalg.solve(inner, seen.T)
    return (found + found.T) / 2
