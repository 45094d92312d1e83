"""Finds the layers that have directions: those whose gradients a tap gives correctly, tested on two samples.

`drcl.directions.passes` then reads all samples. The taps are those of `drcl.per_sample.hooks`.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from drcl import ranks
from drcl.directions.basis import bias_of
from drcl.directions.budget import Choice, Size, fit
from drcl.directions.factors import has_directions
from drcl.importance.fisher import Fisher
from drcl.per_sample.draw import batch_length, take, tensors
from drcl.per_sample.hooks import OnePass, Unsupported, shapes_of_outputs
from drcl.per_sample.layers import is_transposed
from drcl.per_sample.moments import MomentVisitor
from drcl.per_sample.plan import Cotangents, Forward, per_sample_moments
from drcl.per_sample.stand_ins import projections

__all__ = ["Trial"]


class Trial:
    """The samples of one estimate, and the layers with directions: `layers`, by the name of their weight, and `places`,
    the number of positions of a sample at which each is used. `onepass` taps them and all other layers with a rule.

    `fisher` says what to differentiate. `groups` is the optimizer's group of each parameter: a bias in another group is
    not part of its layer. With `channels`, or if patches would be longer than `largest`, the kernel positions of
    convolutions are kept separately.
    """

    def __init__(
        self,
        fisher: Fisher,
        model: nn.Module,
        data: list[Any],
        parameters: dict[str, nn.Parameter],
        forward: Forward,
        groups: Mapping[str, int],
        channels: bool,
        largest: int,
    ) -> None:
        self.fisher, self.model, self.data = fisher, model, data
        self.parameters, self.forward = parameters, forward
        self.channels, self.largest = channels, largest
        self.samples = sum(batch_length(b) for b in data)
        self.layers: dict[str, nn.Module] = {}
        self.choices: dict[str, Choice] = {}  # set if memory is limited
        ours = {id(p): name for name, p in parameters.items()}
        for module in (*model.modules(), *projections(model)):
            if has_directions(module):
                name = ours.get(id(module.weight))
                if name is not None and "weight" in name.rpartition(".")[2] and parameters[name].numel():
                    self.layers.setdefault(name, module)
        self.apart = {name: self._apart(name) for name in self.layers}
        self.biased = {
            name
            for name, module in self.layers.items()
            if not self.apart[name]
            and not is_transposed(module)
            and ours.get(id(module.bias)) == bias_of(name)
            and groups.get(name) == groups.get(bias_of(name))
        }
        for p in model.parameters():
            p.requires_grad_(False)
        self._try()

    def agree(self) -> None:
        """Make all processes agree on the layers with directions, on those with a tap, and on the number of samples."""
        self.samples = ranks.added(self.samples)
        names = ranks.common(self.onepass.names)
        self.onepass.forget([name for name in self.onepass.names if name not in names])
        self._keep(ranks.common(self.covered()))

    def multiplications(self) -> int:
        """How often the model multiplies by a weight with directions to answer once; a text has an answer per token."""
        whole = sum(self.parameters[name].numel() * self.places[name] for name in self.layers)
        return ranks.added(whole // self.answers) // ranks.added(1)

    def fit(self, memory: int, rank: int | None, output_rank: int | None = None) -> dict[str, str]:
        """Make the layers coarse enough for this many bytes; returns a description of each layer."""
        sizes = {name: Size.of(module) for name, module in self.layers.items()}
        finest = {}
        for name, size in sizes.items():
            n = size.inputs * (1 if self.apart[name] else size.kernel) + int(name in self.biased)
            rotated = n <= self.largest, size.outputs <= self.largest
            finest[name] = Choice(rank, self.apart[name], name in self.biased, *rotated, output_rank)
        found = fit(sizes, finest, memory)
        self.choices = {name: choice for name, choice in found.items() if choice is not None}
        self.apart |= {name: choice.apart for name, choice in self.choices.items()}
        self.biased = {name for name, choice in self.choices.items() if choice.bias}
        self.layers = {name: module for name, module in self.layers.items() if name in self.choices}
        return {name: "diagonal" if choice is None else choice.told() for name, choice in found.items()}

    def rotated(self, name: str) -> tuple[bool, bool]:
        """Whether a layer's inputs and outputs are rotated, as far as memory allows."""
        choice = self.choices.get(name)
        return (True, True) if choice is None else (choice.inputs, choice.outputs)

    def _apart(self, name: str) -> bool:
        """Whether a convolution's kernel positions are kept separately: on request, or if patches are too long."""
        weight = self.parameters[name]
        if weight[0, 0].numel() == 1:
            return False
        return self.channels or weight[0].numel() >= self.largest

    def covered(self) -> dict[str, nn.Parameter]:
        names = set(self.layers) | {bias_of(name) for name in self.biased}
        return {name: p for name, p in self.parameters.items() if name in names}

    def _keep(self, names: Iterable[str]) -> None:
        kept = set(names)
        self.layers = {
            n: m for n, m in self.layers.items() if n in kept and (n not in self.biased or bias_of(n) in kept)
        }
        self.biased &= set(self.layers)

    def _try(self) -> None:
        """Keep only the layers whose taps give the right gradients on two samples."""
        self.places: dict[str, int] = {}
        self.answers = 1
        self.onepass = onepass = OnePass(self.model, self.parameters)
        if not self.layers:
            onepass.forget(onepass.names)
            return
        batch = self.data[0]
        pair = take(batch, [0, min(1, batch_length(batch) - 1)])

        def probe(output: Any, target: Any, length: int) -> Cotangents:
            generator = torch.Generator().manual_seed(0)
            return [[torch.randn(o.shape, generator=generator).to(o) for o in tensors(output)]]

        tapped = {name: self.parameters[name] for name in onepass.names}
        with warnings.catch_warnings():
            # Warnings about slow gradients come later, when all samples are read.
            warnings.simplefilter("ignore")
            truth, _ = per_sample_moments(self.model, [pair], tapped, self.forward, probe, 2)
        with shapes_of_outputs(onepass.rules) as shapes, onepass.pieces(), torch.no_grad():
            self.forward(self.model, take(pair, slice(0, 1)))
        uses = Counter(name for module, _ in shapes for name in onepass.owned[module].values())
        self._keep(name for name in self.covered() if uses[name] == 1)
        totals = {name: torch.zeros_like(t) for name, t in truth.items()}
        with onepass.tapped(), onepass.listening():
            output, target = self.forward(self.model, pair)
            self.answers = self.fisher.answers(output, target, 2)
            onepass.layout(2, shapes)
            try:
                onepass.backward(output, probe(output, target, 2), 2, MomentVisitor(onepass, totals, 2))
            except Unsupported:
                onepass.forget(onepass.names)
        close = {n for n, t in truth.items() if (totals[n] - t).double().norm() <= 0.03 * t.double().norm()}
        onepass.forget([name for name in onepass.names if name not in close])
        self._keep(onepass.names)
        for name, module in self.layers.items():
            whole = shapes[module, 0].numel()
            weight = self.parameters[name]
            self.places[name] = max(1, whole // weight.shape[1 if is_transposed(module) else 0])
