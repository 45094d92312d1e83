"""GPM: gradient projection memory. Steps are orthogonal to the inputs that old tasks give to each layer."""

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
class GPM(Method):
    """Saha, Garg, Roy, "Gradient Projection Memory for Continual Learning", ICLR 2021 (arXiv 2103.09762).

    For each linear or convolutional layer, R holds its inputs (patches) for some images of the task just learned and M
    an orthonormal basis of the remembered space, empty at first. At the end of task t

        R^ = R - M M^T R,   R^ = U S V^T,   M <- [M, leading columns of U]

    with the fewest columns for which M holds the share ``threshold + increase * t`` of the energy |R|^2. From the
    second task on a gradient G, as a matrix [out, in], becomes ``G - G M M^T``. The first task trains freely.

    Biases, which the paper's networks lack, count as weights of an input that is always 1. Scale and shift of norm
    layers are trained in the first task and then kept. A head that all tasks share is projected like any layer; heads
    of single tasks are free. A fresh momentum buffer is a sum of projected gradients, hence also orthogonal to M.
    Weight decay and Adam are not orthogonal to M, so they are refused.
    """

    name: ClassVar[str] = "gpm"
    about: ClassVar[str] = "projects gradients off the input space of old tasks (ICLR 2021)"
    abilities: ClassVar[Abilities] = Abilities(norms="unshared", optimizer="sgd", weight_decay=False)
    tunes: ClassVar[Knob | None] = Knob("threshold", 0.5, 0.99)

    threshold: float | tuple[float, ...] = option(
        0.97, "share of the inputs' energy to keep, one for all layers or one each"
    )
    increase: float = option(0.003, "added to the threshold with every task")
    samples: int = option(125, "images per task whose layer inputs are used")

    def check(self) -> None:
        for value in self._thresholds():
            _checks.inside(self.name, "threshold", value, 0.0, 1.0, "try 0.97")
        _checks.at_least(self.name, "increase", self.increase, 0.0, "0 keeps one threshold for all tasks")
        _checks.at_least(self.name, "samples", self.samples, 1, "without inputs there is no memory; try 125")

    def build(self, model: Network, setting: Setting) -> Network:
        super().build(model, setting)
        self.layers = _bases.matrix_layers(model, self.protected())
        given = self._thresholds()
        if len(given) not in (1, len(self.layers)):
            raise ValueError(
                f"{self.name}: threshold has {len(given)} values for {len(self.layers)} layers "
                f"({', '.join(self.layers)}): give one, or one for each"
            )
        return model

    def parameters(self, task: Task) -> dict[str, nn.Parameter]:
        trained = super().parameters(task)
        if not self.state:
            return trained
        loose = _bases.without_inputs(self.layers, self.protected())
        return {name: p for name, p in trained.items() if name not in loose}

    def after_backward(self) -> None:
        for name, basis in self.state.get("bases", {}).items():
            matrix = _bases.gradient(self.layers[name])
            if matrix is not None:
                _bases.write_gradient(self.layers[name], _bases.project(matrix, basis, self.importance(name)))

    def after_task(self, task: Task) -> None:
        inputs = _bases.record(self.model, self.layers, self.sample(task, self.samples, "inputs"), task.head)
        thresholds = self._thresholds() * (len(self.layers) if len(self._thresholds()) == 1 else 1)
        bases: dict[str, Tensor] = self.state.setdefault("bases", {})
        for (name, found), threshold in zip(inputs.items(), thresholds):
            weight = self.layers[name].weight
            old = bases.get(name, weight.new_empty(len(found), 0))
            wanted = min(1.0, threshold + self.increase * task.index)
            new, values = _bases.grow(old, found, wanted)
            bases[name] = torch.cat([old, new.to(weight)], dim=1)
            self.weigh(name, old, values, found)

    # ---- what SGP adds

    def importance(self, name: str) -> Tensor | None:
        """How much of each direction of a layer's basis is taken out; None: all of it."""
        return None

    def weigh(self, name: str, old: Tensor, values: Tensor, inputs: Tensor) -> None:
        """Add a layer's new directions, with their singular values, to the old ones."""

    def _thresholds(self) -> list[float]:
        return list(self.threshold) if isinstance(self.threshold, list | tuple) else [self.threshold]
