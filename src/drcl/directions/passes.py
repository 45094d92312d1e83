"""The passes over samples behind `drcl.Kronecker`: factors, eigenvalues along directions, and the diagonal of the rest.

First it is tried, on two samples, which layers a tap describes in full; only these get directions. The taps and the
visitors' signature are those of `drcl.per_sample.hooks`.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from drcl.directions.basis import Eigenbasis, bias_of
from drcl.directions.factors import KINDS, Eigenvalues, EigenvalueVisitor, Factors, FactorVisitor, Reader
from drcl.importance.arguments import not_finite
from drcl.importance.fisher import Fisher
from drcl.per_sample.draw import batch_length, take, tensors
from drcl.per_sample.hooks import OnePass, Unsupported, Visitor, shapes_of_outputs
from drcl.per_sample.moments import MomentVisitor
from drcl.per_sample.plan import Cotangents, Forward, per_sample_moments

__all__ = ["Passes"]

R = TypeVar("R", bound=Reader)


class Passes:
    """One estimate's samples, and the layers that have directions: `layers`, by the name of their weight.

    `fisher` says what is differentiated. `groups` is the optimizer's group of each parameter: a bias of another group
    is not part of its layer. With `channels` the kernel positions of convolutions are kept apart, and so they are where
    patches would be longer than `largest`.
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
        ours = {id(p): name for name, p in parameters.items()}
        for module in model.modules():
            if type(module) not in KINDS:
                continue
            name = ours.get(id(module.weight), "")
            if name.endswith("weight") and parameters[name].numel():
                self.layers.setdefault(name, module)
        self.apart = {name: self._apart(name) for name in self.layers}
        self.biased = {
            name
            for name, module in self.layers.items()
            if not self.apart[name]
            and ours.get(id(module.bias)) == bias_of(name)
            and groups.get(name) == groups.get(bias_of(name))
        }
        for p in model.parameters():
            p.requires_grad_(False)
        self._try()

    def factors(self) -> dict[str, Factors]:
        """Every layer's mean A and G."""
        found = {
            name: Factors(module, name in self.biased, self.apart[name], self.largest)
            for name, module in self.layers.items()
        }
        self._read(FactorVisitor, found)
        for name, f in found.items():
            f.a.div_(max(f.samples, 1))
            f.g.div_(max(f.samples, 1))
            if not bool(torch.isfinite(f.a).all() & torch.isfinite(f.g).all()):
                raise not_finite(name)
        return found

    def eigenvalues(self, bases: Mapping[str, Eigenbasis]) -> dict[str, Eigenvalues]:
        """The squared gradients of all samples along every layer's directions."""
        found = {name: Eigenvalues(self.layers[name], basis) for name, basis in bases.items()}
        self._read(EigenvalueVisitor, found)
        return found

    def diagonal(self) -> dict[str, Tensor]:
        """The mean squared gradients of everything that has no directions."""
        covered = self._covered()
        rest = {name: p for name, p in self.parameters.items() if name not in covered}
        if not rest:
            return {}
        return replace(self.fisher, samples=self.samples).estimate(self.model, self.data, rest, self.forward)

    def _apart(self, name: str) -> bool:
        """Whether a convolution's kernel positions are kept apart: asked for, or its patches are too long."""
        module, weight = self.layers[name], self.parameters[name]
        if isinstance(module, nn.Linear) or weight[0, 0].numel() == 1:
            return False
        return self.channels or weight[0].numel() >= self.largest

    def _covered(self) -> dict[str, nn.Parameter]:
        names = set(self.layers) | {bias_of(name) for name in self.biased}
        return {name: p for name, p in self.parameters.items() if name in names}

    def _keep(self, names: Iterable[str]) -> None:
        kept = set(names)
        self.layers = {
            n: m for n, m in self.layers.items() if n in kept and (n not in self.biased or bias_of(n) in kept)
        }
        self.biased &= set(self.layers)

    def _try(self) -> None:
        """Keep the layers whose gradients are what a tap on them says, tried on two samples."""
        if not self.layers:
            return
        batch = self.data[0]
        pair = take(batch, [0, min(1, batch_length(batch) - 1)])

        def probe(output: Any, target: Any, length: int) -> Cotangents:
            generator = torch.Generator().manual_seed(0)
            return [[torch.randn(o.shape, generator=generator).to(o) for o in tensors(output)]]

        covered = self._covered()
        with warnings.catch_warnings():
            # What has to be slow is said when it is done in earnest.
            warnings.simplefilter("ignore")
            truth, _ = per_sample_moments(self.model, [pair], covered, self.forward, probe, 2)
        everything = OnePass(self.model, covered)
        with shapes_of_outputs(everything.rules) as shapes, torch.no_grad():
            self.forward(self.model, take(pair, slice(0, 1)))
        uses = Counter(name for module, _ in shapes for name in everything.owned[module].values())
        self._keep(name for name in covered if uses[name] == 1)
        self.onepass = onepass = OnePass(self.model, self._covered())
        onepass.keep(self.layers.values())
        totals = {name: torch.zeros_like(t) for name, t in truth.items()}
        with onepass.tapped(), onepass.listening():
            output, target = self.forward(self.model, pair)
            onepass.layout(2, shapes)
            try:
                onepass.backward(output, probe(output, target, 2), 2, MomentVisitor(onepass, totals, 2))
            except Unsupported:
                self._keep(())
        close = {n for n, t in truth.items() if (totals[n] - t).double().norm() <= 0.03 * t.double().norm()}
        self._keep(close & set(onepass.names))
        onepass.forget([name for name in onepass.names if name not in self._covered()])

    def _read(self, visitor: Callable[[Iterable[R]], Visitor], readers: Mapping[str, R]) -> None:
        """One pass over the samples: every layer's reader is shown what goes in and what comes back."""
        if not readers:
            return
        onepass, rng = self.onepass, np.random.default_rng([self.fisher.seed, 1])
        with onepass.tapped():
            for batch in self.data:
                length = batch_length(batch)
                with onepass.listening():
                    output, target = self.forward(self.model, batch)
                    cotangents = self.fisher.cotangents(output, target, length, rng)
                    try:
                        onepass.backward(output, cotangents, length, visitor(readers.values()))
                    except Unsupported as reason:
                        raise ValueError(
                            f"Kronecker: {reason}; give it batches that the model treats alike, or use drcl.Fisher()"
                        ) from None
