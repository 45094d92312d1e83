"""The passes over samples behind `drcl.Kronecker`: factors, eigenvalues along directions, and the diagonal of the rest.

Eigenvalues are measured along directions, which come from the factors, so they come second. Even so, one pass over the
samples is enough. For a layer with few rows (positions of all samples together), inputs and derivatives are kept until
its directions are known. For a layer with many rows, one half of the samples gives the factors, from randomly drawn
positions, and the other half the eigenvalues, from sums of a few samples with random signs. All draws have a seed.

Processes that measure together (`drcl.ranks`) each read their own samples, in any number of batches. Sums are added
over processes after a pass, never during it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from drcl import ranks
from drcl.directions.basis import Eigenbasis
from drcl.directions.eigenvalues import Eigenvalues
from drcl.directions.factors import Factors, Reader
from drcl.directions.trial import Trial
from drcl.importance.arguments import not_finite
from drcl.importance.fisher import Fisher
from drcl.per_sample.draw import batch_length, regroup, take
from drcl.per_sample.hooks import OnePass, Unsupported, Visitor
from drcl.per_sample.moments import MomentVisitor
from drcl.per_sample.plan import accumulator

__all__ = ["PassVisitor", "Passes"]

# Half of the samples are enough for the factors if they have this many rows for each entry of the longer side, and this
# many in total. If there are more than twice as many, only twice as many are drawn.
_ENOUGH, _LEAST = 4, 1024

# Number of sums with random signs to square: they give an eigenvalue up to a factor of 1 +- sqrt(2 / groups).
_GROUPS = 64


class Passes(Trial):
    """Reads the samples. With `twice` each sample is read twice, at every position, and nothing is drawn."""

    def __init__(self, *arguments: Any, twice: bool = False, measured: bool = True) -> None:
        """The arguments of `Trial`; `measured` says whether eigenvalues are measured, which needs more than factors."""
        super().__init__(*arguments)
        self.twice, self.measured = twice, measured
        self.rest: dict[str, Tensor] | None = None  # moments of parameters with neither directions nor a rule
        self.moments: dict[str, Tensor] = {}  # moments of parameters with a rule
        self.seen = 0
        self.rng = np.random.default_rng([self.fisher.seed, 1])

    def factors(self) -> dict[str, Factors]:
        """The first pass: the mean A and G of the layers whose directions the second pass needs."""
        divided, few = self._divided()
        self.first, self.second = self._halves() if divided else (self.data, self.data if self.twice else [])
        early = [name for name in self.layers if self.twice or not self.measured or name in divided]
        self.stored: dict[nn.Module, list[tuple[Tensor, Tensor]]] = {
            module: [] for name, module in self.layers.items() if name not in early
        }
        self.sums = {
            name: Factors(
                *(module, name in self.biased, self.apart[name], self.largest, self.rotated(name)),
                *(few.get(name), self.fisher.seed),
            )
            for name, module in self.layers.items()
        }
        covered = self.covered()
        self.moments = {
            name: torch.zeros_like(self.parameters[name], dtype=accumulator(self.parameters[name]), requires_grad=False)
            for name in (self.onepass.names if self.layers else ())
            if name not in covered
        }
        self._read(self.first, self.sums.values(), self.moments)
        return self._finished(early)

    def eigenvalues(self, bases: Mapping[str, Eigenbasis]) -> dict[str, Eigenvalues]:
        """The second pass: the squared gradients along the directions of these layers."""
        samples = ranks.added(_count(self.second))
        together = 1 if self.twice else max(1, samples // _GROUPS)
        found = {
            name: Eigenvalues(self.layers[name], basis, samples, together, self.fisher.seed)
            for name, basis in bases.items()
        }
        if self.twice:
            self.rng = np.random.default_rng([self.fisher.seed, 1])  # draw the labels of the first pass again
        self._read(self.second, (*self.sums.values(), *found.values()), {} if self.twice else self.moments)
        ranks.add_(e.total for e in found.values())
        return found

    def late_factors(self) -> dict[str, Factors]:
        """The mean A and G, over all samples, of the layers whose inputs and derivatives were kept."""
        return self._finished(list(self.sums))

    def late_eigenvalues(self, bases: Mapping[str, Eigenbasis]) -> dict[str, Eigenvalues]:
        """The squared gradients along the directions of these layers."""
        found = {name: Eigenvalues(self.layers[name], basis, self.samples) for name, basis in bases.items()}
        with ranks.together():
            for e in found.values():
                for x, d in self.stored.pop(e.module):
                    e.add(x, d, inputs=True)
        ranks.add_(e.total for e in found.values())
        return found

    def trace(self) -> float:
        """The importance of everything that `factors` has not returned yet, as far as it has been read."""
        layers = 0.0
        for f in self.sums.values():
            a, g = f.traces()
            ranks.add_([a, g])
            layers += f.product(a, g) / max(ranks.added(f.samples), 1) ** 2
        return layers + sum(float(t.double().sum()) for t in self.diagonal().values())

    def diagonal(self) -> dict[str, Tensor]:
        """The mean squared gradients of everything without directions, as far as it has been read."""
        if self.rest is None:
            read = {*self.covered(), *self.moments}
            rest = {name: p for name, p in self.parameters.items() if name not in read}
            # Not the estimator's own `estimate`: Kronecker's would come back here.
            # A parameter without a rule costs more than a training step, so only some of the samples are used.
            fewer = self.samples if self.twice else min(self.samples, max(_GROUPS, self.samples // 8))
            fisher = replace(self.fisher, samples=math.ceil(_count(self.data) * fewer / self.samples))
            self.rest = Fisher.estimate(fisher, self.model, self.data, rest, self.forward) if rest else {}
        seen = max(ranks.added(self.seen), 1)
        means = {name: t / seen for name, t in self.moments.items()}
        ranks.add_(means.values())
        return {**self.rest, **means}

    def _divided(self) -> tuple[set[str], dict[str, tuple[int, int]]]:
        """The layers whose samples are divided, and how many positions per sample to draw for A and for G."""
        few = {}
        half = ranks.added(_count(self.data) // 2) if self.measured else self.samples
        for name, module in {} if self.twice else self.layers.items():
            reader = Reader(module, name in self.biased, self.apart[name])
            longest = max(reader.inputs, reader.outputs)
            if half * self.places[name] >= max(_ENOUGH * longest, _LEAST):
                inputs, outputs = (2 * max(_ENOUGH * side, _LEAST) for side in (reader.inputs, reader.outputs))
                few[name] = math.ceil(inputs / half), math.ceil(outputs / half)
        found = ranks.common(few)  # the first samples of another process may be shorter
        return found if self.measured else set(), {name: few[name] for name in found}

    def _halves(self) -> tuple[list[Any], list[Any]]:
        """Every second sample, and all the others, in batches of the original length."""
        length = batch_length(self.data[0])
        parts = [[take(b, slice((i + k) % 2, None, 2)) for i, b in enumerate(self.data)] for k in (0, 1)]
        first, second = (list(regroup((b for b in part if batch_length(b)), length)) for part in parts)
        return first, second

    def _finished(self, names: Iterable[str]) -> dict[str, Factors]:
        found = {name: self.sums.pop(name) for name in names}
        for name, f in found.items():
            ranks.add_([f.a, f.g])
            f.samples = ranks.added(f.samples)
            f.a.div_(max(f.samples, 1))
            f.g.div_(max(f.samples, 1))
            if not bool(torch.isfinite(f.a).all() & torch.isfinite(f.g).all()):
                raise not_finite(name)
        return found

    def _read(self, data: list[Any], readers: Iterable[Factors | Eigenvalues], moments: dict[str, Tensor]) -> None:
        """One pass over some samples: every layer's reader gets the layer's inputs and derivatives."""
        by_layer = {reader.module: reader for reader in readers}
        if not by_layer:
            return
        with ranks.together(), self.onepass.tapped():
            for batch in data:
                length = batch_length(batch)
                with self.onepass.listening():
                    output, target = self.forward(self.model, batch)
                    cotangents = self.fisher.cotangents(output, target, length, self.rng)
                    visitor = PassVisitor(self.onepass, by_layer, self.stored, moments)
                    try:
                        self.onepass.backward(output, cotangents, length, visitor)
                    except Unsupported as reason:
                        raise ValueError(
                            f"Kronecker: {reason}; give it only batches for which the model calls its layers in the "
                            "same way"
                        ) from None
                self.seen += length if moments else 0


def _count(data: list[Any]) -> int:
    return sum(map(batch_length, data))


class PassVisitor(Visitor):
    """Passes one batch to the readers of its layers, keeps what is needed later, and adds up moments of the rest.

    Inputs do not depend on the label, so they count once per batch.
    """

    def __init__(
        self,
        onepass: OnePass,
        readers: Mapping[nn.Module, Factors | Eigenvalues],
        stored: Mapping[nn.Module, list[tuple[Tensor, Tensor]]],
        moments: dict[str, Tensor],
    ) -> None:
        self.readers, self.stored = readers, stored
        self.moments = MomentVisitor(onepass, moments, 2)
        self._seen: set[nn.Module] = set()

    def __call__(self, module: nn.Module, x: Tensor, d: Tensor) -> None:
        reader = self.readers.get(module)
        if reader is not None:
            reader.add(x, d, inputs=module not in self._seen)
            self._seen.add(module)
            if module in self.stored:
                # Copies, because a view would keep the whole tensor in memory.
                self.stored[module].append((x.clone(), d.clone()))
        self.moments(module, x, d)

    def end_of_pass(self) -> None:
        self.moments.end_of_pass()
