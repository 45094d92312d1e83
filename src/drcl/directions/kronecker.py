"""Kronecker: importance that takes into account how the weights of a layer act together.

`DRCL.consolidate(model, data, importance=drcl.Kronecker())` protects directions instead of single weights: those of the
earlier tasks' inputs and derivatives (`drcl.directions.basis`). It covers linear maps, also inside attention and
recurrent layers, and convolutions. Every other parameter gets its diagonal Fisher in the same call and the same units.

Closest relatives: R-EWC rotates a layer into coordinates in which its Fisher information is nearly diagonal and runs
EWC there (Liu, Masana, Herranz, van de Weijer, Lopez, Bagdanov, "Rotate your networks", 2018). Online structured
Laplace carries Kronecker factors from task to task as the precision of a posterior, and adds a penalty to the loss
(Ritter, Botev, Barber 2018). Natural continual learning uses such a precision as the metric of its steps (Kao, Jensen,
van de Ven, Bernacchia, Hennequin 2021). Here a proximal map, which may be L1, works in the rotated coordinates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from drcl import ranks
from drcl.directions.basis import Eigenbasis, as_matrix, as_weight, bias_of
from drcl.directions.budget import as_bytes
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
from drcl.importance.base import History, Measured, check_history
from drcl.importance.fisher import Fisher, Labels
from drcl.per_sample.draw import batch_length, draw
from drcl.per_sample.plan import Forward

__all__ = ["Kronecker"]


@dataclass(frozen=True)
class Kronecker(Fisher):
    """Kronecker-factored Fisher information and its eigenbasis; `samples`, `labels`, `loss` as in ``drcl.Fisher``.

    The default of `labels` is "outputs" for an optimizer with strength "auto", and "signs" otherwise: directions need
    an estimate that does not vanish where the model is certain.

    For each Linear, Conv1d and Conv2d (grouped, strided, padded, dilated) the second moments A of its inputs (patches
    of a convolution) and G of its output derivatives are summed over tasks as ``DRCL(memory=...)`` says. Weights are
    then held along the products of their eigenvectors, with the bias as a last column. The same holds for the
    projections of nn.MultiheadAttention (separately for queries, keys and values), for the gates of nn.LSTM, nn.GRU and
    nn.RNN, and for GPT-2's Conv1D, whose bias is held weight by weight. Norms, embeddings, tied weights and layers used
    more than once keep the diagonal estimate; the anchor's provenance lists both kinds.

    Args:
        eigenvalues: "exact" measures the importance of each direction as the mean square of per-sample gradients
            along it (EK-FAC: George et al. 2018). The importance of earlier tasks is carried over as its diagonal in
            the new directions, which keeps its sum. "product" multiplies the eigenvalues of the summed factors: no
            samples needed, but coarser.
        convolutions: "patches" treats channels and kernel positions together. "channels" rotates channels only and
            keeps kernel positions and bias separate: for wide convolutions, whose patches are long.
        rank: on a side more than 1.5 times as long as this, keep at most this many directions separately; None: all.
            A shorter side is kept whole, which costs no more. The directions left out share a mean importance: one mean
            for each kept output direction, one for each kept input direction, one for all others.
        output_rank: keep at most this many output directions on a side that is cut; None: as many as for inputs. The
            loss reacts to far fewer output directions than there are input directions. Only this many inputs have
            their own mean over the outputs left out, which makes a step cheap.
        memory: bytes, such as "2GB", for factors, directions and their importance together; None: no limit. The
            largest layers become coarser until all fit (`drcl.directions.budget`), and the anchor's provenance records
            how. Importance by single weights is not counted.
        largest: a side longer than this is not rotated (for a convolution, its channels are tried before its patches
            are given up).
        passes: 1 reads every sample once. If a layer has many rows (samples times positions, at least a thousand and
            four times its inputs), half of the samples give its factors, from randomly drawn positions, and the other
            half the importance of its directions, from sums of samples with random signs. This is unbiased and depends
            on `seed`. 2 reads every sample twice and draws nothing, at two to six times the cost.

    A step rotates the weights there and back: about 4 m n (j + k) operations per layer with m outputs, n inputs and
    j, k directions kept. ``rank`` and ``DRCL(plasticity_steps=n)``, which negotiates once per n optimizer steps, make
    this small compared with the n forward and backward passes. Memory per layer: n^2 + m^2 for the factors, n k + m j
    for the directions, j k for their importance.
    """

    eigenvalues: Literal["exact", "product"] = "exact"
    convolutions: Literal["patches", "channels"] = "patches"
    rank: int | None = 256
    largest: int = 4096
    memory: int | str | None = None
    passes: Literal[1, 2] = 1
    output_rank: int | None = 64

    finds_directions: ClassVar[bool] = True
    usual_labels: ClassVar[Labels] = "signs"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, allowed in {"eigenvalues": ("exact", "product"), "convolutions": ("patches", "channels")}.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"Kronecker({name}={getattr(self, name)!r}): use one of {', '.join(allowed)}")
        for name in ("rank", "output_rank", "largest"):
            value = getattr(self, name)
            whole = isinstance(value, int | np.integer) and not isinstance(value, bool) and value >= 1
            if not whole and not (name != "largest" and value is None):
                raise ValueError(f"Kronecker({name}={value!r}): {name} must be a whole number of at least 1")

        if isinstance(self.passes, bool) or self.passes not in (1, 2):
            raise ValueError(f"Kronecker(passes={self.passes!r}): passes must be 1 or 2")
        if self.memory is not None:
            as_bytes(self.memory)

    def describe(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in ("eigenvalues", "convolutions", "largest", "passes")}
        for name in ("rank", "output_rank"):
            own[name] = None if getattr(self, name) is None else int(getattr(self, name))
        own["memory"] = None if self.memory is None else as_bytes(self.memory)
        return {**super().describe(), "estimator": "Kronecker", **own}

    def estimate(
        self,
        model: nn.Module,
        batches: Any,
        parameters: dict[str, nn.Parameter],
        forward: Forward | None = None,
    ) -> dict[str, Tensor]:
        """The importance of each weight, to read and compare: the diagonal of what ``measure`` finds."""
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
        check_history(history)
        history = History() if history is None else history
        seed, exact = ranks.seed(self.seed), self.eigenvalues == "exact"
        with ready(model, parameters, forward, seed) as (bare, call):
            with ranks.together():
                data = [b for b in draw(batches, self.samples, seed, self.batch_size) if batch_length(b)]
                if not data:
                    raise no_samples()
                fisher, channels = replace(self.for_model(bare), seed=seed), self.convolutions == "channels"
                once = self.passes == 1 and self._labels() != "exact"
                arguments = (fisher, bare, data, parameters, call, history.groups, channels, self.largest)
                passes = Passes(*arguments, twice=not once, measured=exact)
            passes.agree()
            multiplications = passes.multiplications()
            fitted = None if self.memory is None else passes.fit(as_bytes(self.memory), self.rank, self.output_rank)
            weights = sum(p.numel() for p in parameters.values())
            factors = passes.factors()
            unit = unit_of(history, sum(f.trace() for f in factors.values()) + passes.trace(), weights)
            bases = self._bases(factors, passes, history, unit)
            found = passes.eigenvalues(bases) if exact else {}
            late = passes.late_factors()
            rest, factors = passes.diagonal(), factors | late
            diagonal = sum(float(t.double().sum()) for t in rest.values())
            if late:
                unit = unit_of(history, sum(f.trace() for f in factors.values()) + diagonal, weights)
                more = self._bases(late, passes, history, unit)
                found |= passes.late_eigenvalues(more)
                bases = {name: (bases | more)[name] for name in passes.layers}
            if exact:
                unit = unit_of(history, sum(e.trace() for e in found.values()) + diagonal, weights)
                for name, e in found.items():
                    bases[name] = _with_eigenvalues(name, e.means() * unit, bases[name], factors[name], history)
            if self.output_rank is not None:
                bases = {name: basis.with_shared_columns(self.output_rank) for name, basis in bases.items()}
        importance = {name: t * unit for name, t in rest.items()}
        for name, basis in bases.items():
            weight, bias = basis.diagonal()
            importance[name] = as_weight(weight, parameters[name])
            if bias is not None:
                importance[bias_of(name)] = bias.flatten()
        # Keep the caller's order: reports use it.
        ordered = {name: importance[name] for name in parameters}
        with_earlier = frozenset(importance.keys() - rest.keys())
        notes: dict[str, Any] = {"likelihood": fisher.describe()["likelihood"], "multiplications": multiplications}
        if fitted is not None:
            notes["layers"] = fitted
        return Measured(ordered, bases, in_unit=True, with_earlier=with_earlier, notes=notes)

    def _bases(
        self, factors: Mapping[str, Factors], passes: Passes, history: History, unit: float
    ) -> dict[str, Eigenbasis]:
        """The bases of these layers, the same on all processes."""
        kept = {name: passes.choices[name].rank if name in passes.choices else self.rank for name in factors}
        bases = {name: self._basis(name, f, history, unit, kept[name]) for name, f in factors.items()}
        ranks.same_(t for basis in bases.values() for t in basis.tensors().values())
        return bases

    def _basis(self, name: str, f: Factors, history: History, unit: float, rank: int | None) -> Eigenbasis:
        """The basis of this task's factors plus the earlier ones: eigenvectors and products of eigenvalues."""
        a, g, count = f.a, f.g * unit, 1.0
        old = _earlier_basis(name, f, history)
        weights = _earlier_weights(name, f, history) if old is None else None
        if old is not None:
            count = add_factors(history, a, g, old)
        elif weights is not None:
            count = add_diagonal_to_factors(history, a, g, weights)
        start = (None, None) if old is None or self.passes == 2 else (old.inputs, old.outputs)
        return basis_of(a, g, rank, f.positions, f.bias, count, start, self.output_rank)


def _with_eigenvalues(name: str, values: Tensor, basis: Eigenbasis, f: Factors, history: History) -> Eigenbasis:
    """The basis with measured eigenvalues plus the importance of earlier tasks along its directions."""
    old = _earlier_basis(name, f, history)
    weights = _earlier_weights(name, f, history) if old is None else None
    if old is not None:
        add_eigenvalues(history, values, old.seen_in(basis))
    elif weights is not None:
        add_diagonal(history, values, basis.see(weights))
    return replace(basis, eigenvalues=values.clamp_(min=0))


def _earlier_basis(name: str, f: Factors, history: History) -> Eigenbasis | None:
    """The layer's earlier basis, if `keep` is above zero and it was made with the same options."""
    old = history.bases.get(name)
    if old is None or not history.keep:
        return None
    same = old.input_factor.shape == f.a.shape and old.output_factor.shape == f.g.shape
    same = same and old.bias == f.bias and old.eigenvalues.shape[1] == f.positions
    return old if same else None


def _earlier_weights(name: str, f: Factors, history: History) -> Tensor | None:
    """The earlier importance of each weight, in the shape of the layer's matrices, if `keep` is above zero."""
    parts = [history.importance.get(name), history.importance.get(bias_of(name)) if f.bias else None]
    weight, bias = (None if t is None else t.to(f.a.dtype) for t in parts)
    if not history.keep or (weight is None and bias is None):
        return None
    # Weight or bias may have been frozen until now.
    shape = f.groups, f.positions, f.outputs, f.inputs - int(f.bias)
    whole = f.a.new_zeros(shape) if weight is None else as_matrix(weight, f.groups, f.positions)
    if f.bias:
        last = f.a.new_zeros(shape[:3]) if bias is None else bias.reshape(f.groups, 1, -1)
        whole = torch.cat([whole, last[..., None]], -1)
    return in_estimators_unit(history, whole)
