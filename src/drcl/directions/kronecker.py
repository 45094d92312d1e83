"""Kronecker: importance that knows how the weights of a layer act together.

`DRCL.consolidate(model, data, importance=drcl.Kronecker())` protects directions instead of single weights: those along
which the earlier tasks' inputs and derivatives lie (`drcl.directions.basis`). Linear layers and convolutions are
covered, every other parameter gets its diagonal Fisher in the same call, in the same units.

Closest relatives: R-EWC turns a layer into coordinates in which its Fisher information is nearly diagonal and runs EWC
there (Liu, Masana, Herranz, van de Weijer, Lopez, Bagdanov, "Rotate your networks", 2018). Online structured Laplace
carries Kronecker factors from task to task as the precision of a posterior, and penalises in the loss (Ritter, Botev,
Barber 2018). Natural continual learning takes such a precision as the metric of its steps (Kao, Jensen, van de Ven,
Bernacchia, Hennequin 2021). Here the turned coordinates are where a proximal map is taken, which may be L1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from drcl.directions.basis import Eigenbasis, as_matrix, as_weight, bias_of
from drcl.directions.factors import Factors, basis_of
from drcl.directions.passes import Passes
from drcl.importance.accumulation import (
    add_diagonal,
    add_diagonal_to_factors,
    add_eigenvalues,
    add_factors,
    in_estimators_unit,
    unit_of,
)
from drcl.importance.arguments import no_samples, ready
from drcl.importance.base import History, Measured
from drcl.importance.fisher import Fisher, Labels
from drcl.per_sample.draw import batch_length, draw
from drcl.per_sample.plan import Forward

__all__ = ["Kronecker"]


@dataclass(frozen=True)
class Kronecker(Fisher):
    """Kronecker-factored Fisher information and its eigenbasis; `samples`, `labels`, `loss` as in ``drcl.Fisher``.

    Labels are "signs" unless said otherwise: directions want an estimate that does not vanish where the model is sure.

    For each Linear, Conv1d and Conv2d (grouped, strided, padded, dilated) the second moments A of its inputs (patches
    of a convolution) and G of its output derivatives are summed over tasks as ``DRCL(memory=...)`` says. Weights are
    then held along the products of their eigenvectors, the bias as a last column. Norms, embeddings, attention's
    packed projections, tied weights and layers used more than once keep the diagonal estimate.

    Args:
        eigenvalues: "exact" measures the importance of each direction as the mean square of per-sample gradients
            along it (EK-FAC: George et al. 2018), in a second pass; what earlier tasks left is carried over as the
            diagonal of their importance in the new directions, which keeps its sum. "product" multiplies the
            eigenvalues of the summed factors: one pass, coarser.
        convolutions: "patches" takes channels and kernel positions together; "channels" rotates channels only and
            keeps a convolution's kernel positions apart (and its bias out of it): for wide convolutions, whose
            patches are long.
        rank: tell apart at most this many directions of a side that is more than half again as long; None: of any.
            A shorter side is kept whole, which costs no more. What is left out is held by the mean of its importance,
            one mean for each output direction that is kept, one for each input direction, one for all others.
        largest: a side longer than this is not rotated (a convolution's patches: its channels are tried first).

    A step rotates the weights there and back: with m outputs, n inputs and j, k directions kept some 4 m n (j + k)
    operations a layer. ``rank`` and ``DRCL(plasticity_steps=n)``, which negotiates once for n optimizer steps, make
    that small beside the n forward and backward passes. Memory a layer: n^2 + m^2 for the factors, n k + m j for
    the directions, j k for their importance.
    """

    labels: Labels = "signs"
    eigenvalues: Literal["exact", "product"] = "exact"
    convolutions: Literal["patches", "channels"] = "patches"
    rank: int | None = 256
    largest: int = 4096

    finds_directions: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, allowed in {"eigenvalues": ("exact", "product"), "convolutions": ("patches", "channels")}.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"Kronecker({name}={getattr(self, name)!r}): use one of {', '.join(allowed)}")
        for name in ("rank", "largest"):
            value = getattr(self, name)
            whole = isinstance(value, int | np.integer) and not isinstance(value, bool) and value >= 1
            if not whole and not (name == "rank" and value is None):
                raise ValueError(f"Kronecker({name}={value!r}): {name} must be a whole number of at least 1")

    def describe(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in ("eigenvalues", "convolutions", "largest")}
        own["rank"] = None if self.rank is None else int(self.rank)
        return {**super().describe(), "estimator": "Kronecker", **own}

    def estimate(
        self,
        model: nn.Module,
        batches: Any,
        parameters: dict[str, nn.Parameter],
        forward: Forward | None = None,
    ) -> dict[str, Tensor]:
        """The importance of each weight, for reading and comparing: the diagonal of what ``measure`` finds."""
        return self.measure(model, batches, parameters, forward).importance

    def measure(
        self,
        model: nn.Module,
        batches: Any,
        parameters: dict[str, nn.Parameter],
        forward: Forward | None = None,
        history: History | None = None,
    ) -> Measured:
        """Bases for the layers that have one, and an importance for every weight."""
        history = History() if history is None else history
        with ready(model, parameters, forward, self.seed) as (bare, call):
            data = [b for b in draw(batches, self.samples, self.seed, self.batch_size) if batch_length(b)]
            if not data:
                raise no_samples()
            fisher = Fisher(self.samples, self.labels, self.loss, self.seed, self.batch_size)
            channels = self.convolutions == "channels"
            passes = Passes(fisher, bare, data, parameters, call, history.groups, channels, self.largest)
            factors = passes.factors()
            rest = passes.diagonal()
            diagonal = sum(float(t.double().sum()) for t in rest.values())
            weights = sum(p.numel() for p in parameters.values())
            unit = unit_of(history, sum(f.trace() for f in factors.values()) + diagonal, weights)
            bases = {name: self._basis(name, f, history, unit) for name, f in factors.items()}
            if self.eigenvalues == "exact":
                exact = passes.eigenvalues(bases)
                total = sum(e.trace() / passes.samples for e in exact.values()) + diagonal
                unit = unit_of(history, total, weights)
                for name, e in exact.items():
                    values = e.means(passes.samples) * unit
                    bases[name] = _with_eigenvalues(name, values, bases[name], factors[name], history)
        importance = {name: t * unit for name, t in rest.items()}
        for name, basis in bases.items():
            weight, bias = basis.diagonal()
            importance[name] = as_weight(weight, parameters[name])
            if bias is not None:
                importance[bias_of(name)] = bias.flatten()
        # In the caller's order, which is the order of reports.
        ordered = {name: importance[name] for name in parameters}
        return Measured(ordered, bases, in_unit=True, with_earlier=frozenset(importance.keys() - rest.keys()))

    def _basis(self, name: str, f: Factors, history: History, unit: float) -> Eigenbasis:
        """This task's factors and the earlier ones', their eigenvectors, and the product of their eigenvalues."""
        a, g, count = f.a, f.g * unit, 1.0
        old = _earlier_basis(name, f, history)
        weights = _earlier_weights(name, f, history) if old is None else None
        if old is not None:
            count = add_factors(history, a, g, old)
        elif weights is not None:
            count = add_diagonal_to_factors(history, a, g, weights)
        return basis_of(a, g, self.rank, f.positions, f.bias, count)


def _with_eigenvalues(name: str, values: Tensor, basis: Eigenbasis, f: Factors, history: History) -> Eigenbasis:
    """The basis with eigenvalues that were measured, and with what earlier tasks need along its directions."""
    old = _earlier_basis(name, f, history)
    weights = _earlier_weights(name, f, history) if old is None else None
    if old is not None:
        add_eigenvalues(history, values, old.seen_in(basis))
    elif weights is not None:
        add_diagonal(history, values, basis.see(weights))
    return replace(basis, eigenvalues=values.clamp_(min=0))


def _earlier_basis(name: str, f: Factors, history: History) -> Eigenbasis | None:
    """The layer's earlier basis, if any of it stays and it was made with the same options."""
    old = history.bases.get(name)
    if old is None or not history.keep:
        return None
    same = old.input_factor.shape == f.a.shape and old.output_factor.shape == f.g.shape
    same = same and old.bias == f.bias and old.eigenvalues.shape[1] == f.positions
    return old if same else None


def _earlier_weights(name: str, f: Factors, history: History) -> Tensor | None:
    """How much each weight of the layer mattered to earlier tasks, as its matrices are, if any of it stays."""
    parts = [history.importance.get(name), history.importance.get(bias_of(name)) if f.bias else None]
    weight, bias = (None if t is None else t.to(f.a.dtype) for t in parts)
    if not history.keep or (weight is None and bias is None):
        return None
    # One of the two may have been frozen until now.
    shape = f.groups, f.positions, f.outputs, f.inputs - int(f.bias)
    whole = f.a.new_zeros(shape) if weight is None else as_matrix(weight, f.groups, f.positions)
    if f.bias:
        last = f.a.new_zeros(shape[:3]) if bias is None else bias.reshape(f.groups, 1, -1)
        whole = torch.cat([whole, last[..., None]], -1)
    return in_estimators_unit(history, whole)
