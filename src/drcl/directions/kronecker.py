"""Kronecker: importance that knows how the weights of a layer act together.

`DRCL.consolidate(model, data, importance=drcl.Kronecker())` protects directions instead of single weights: those along
which the earlier tasks' inputs and derivatives lie (`drcl.directions.basis`). Linear layers and convolutions are
covered, every other parameter gets its diagonal Fisher in the same call, in the same units.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from drcl.directions.basis import Eigenbasis, as_matrix, as_weight, bias_of, eigenvectors
from drcl.directions.factors import KINDS, Eigenvalues, EigenvalueVisitor, Factors, FactorVisitor, Reader
from drcl.importance.fisher import Fisher, Labels, _bare, _check_parameters, _checked, default_forward
from drcl.options import task_sum
from drcl.per_sample.draw import batch_length, draw, take, tensors
from drcl.per_sample.hooks import OnePass, Unsupported, Visitor, shapes_of_outputs
from drcl.per_sample.moments import MomentVisitor
from drcl.per_sample.plan import Cotangents, Forward, per_sample_moments
from drcl.preserve import undisturbed

__all__ = ["History", "Kronecker", "Measured"]

R = TypeVar("R", bound=Reader)


class Measured(NamedTuple):
    """Importance in the estimator's own units. Where a basis is, earlier tasks are already in it."""

    importance: dict[str, Tensor]
    bases: dict[str, Eigenbasis]  # by the name of the weight


@dataclass(frozen=True)
class History:
    """What earlier tasks left, in units of their mean, and how a new task is added to it."""

    bases: Mapping[str, Eigenbasis] = field(default_factory=dict)
    importance: Mapping[str, Tensor] = field(default_factory=dict)
    mean: float = 0.0
    keep: float = 0.0  # how much of it stays
    normalise: str = "global"  # the unit of a new task, see options.task_sum
    groups: Mapping[str, int] = field(default_factory=dict)  # a bias of another group is not part of its layer


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
            along it (EK-FAC), in a second pass; what earlier tasks left is carried over as the diagonal of their
            importance in the new directions, which keeps its sum. "product" multiplies the eigenvalues of the
            summed factors: one pass, coarser.
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
        model = _bare(model)
        _check_parameters(model, parameters)
        with undisturbed(model, seed=self.seed):
            model.eval()
            hook = default_forward if forward is None else _checked(forward)
            data = [b for b in draw(batches, self.samples, self.seed, self.batch_size) if batch_length(b)]
            if not data:
                raise ValueError(
                    "batches holds no samples: the loader is empty, or it is a generator already used up; "
                    "pass a loader or a list, or make the generator anew"
                )
            for p in model.parameters():
                p.requires_grad_(False)
            work = _Work(self, model, data, parameters, hook, history.groups)
            importance = work.diagonal()
            found, unit = work.bases(history, importance)
            importance = {name: t * unit for name, t in importance.items()}
        for name, basis in found.items():
            weight, bias = basis.diagonal()
            importance[name] = as_weight(weight, parameters[name])
            if bias is not None:
                importance[bias_of(name)] = bias.flatten()
        # In the caller's order, which is the order of reports.
        return Measured({name: importance[name] for name in parameters}, found)


class _Work:
    """One estimate: the layers found, their factors, and the passes over the samples."""

    def __init__(
        self,
        options: Kronecker,
        model: nn.Module,
        data: list[Any],
        parameters: dict[str, nn.Parameter],
        forward: Forward,
        groups: Mapping[str, int],
    ) -> None:
        self.options, self.model, self.data = options, model, data
        self.parameters, self.forward = parameters, forward
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
        self._try()
        self.factors = {
            name: Factors(module, name in self.biased, self.apart[name], options.largest)
            for name, module in self.layers.items()
        }
        self._read(FactorVisitor, self.factors)
        for name, f in self.factors.items():
            if not bool(torch.isfinite(f.a).all() & torch.isfinite(f.g).all()):
                raise FloatingPointError(
                    f"the gradient of parameter {name!r} is not finite on some samples (nan, inf or too "
                    "large to square); look for diverged training or bad values in the data first"
                )

    def _apart(self, name: str) -> bool:
        """Whether a convolution's kernel positions are kept apart: asked for, or its patches are too long."""
        module, weight = self.layers[name], self.parameters[name]
        if isinstance(module, nn.Linear) or weight[0, 0].numel() == 1:
            return False
        return self.options.convolutions == "channels" or weight[0].numel() >= self.options.largest

    def _covered(self) -> dict[str, nn.Parameter]:
        names = set(self.layers) | {bias_of(name) for name in self.biased}
        return {name: p for name, p in self.parameters.items() if name in names}

    def _tap(self) -> OnePass:
        """Taps on the layers that are left, and nothing else."""
        onepass = OnePass(self.model, self._covered())
        onepass.keep(self.layers.values())
        return onepass

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
        onepass = OnePass(self.model, covered)
        with shapes_of_outputs(onepass.rules) as shapes, torch.no_grad():
            self.forward(self.model, take(pair, slice(0, 1)))
        uses = Counter(name for module, _ in shapes for name in onepass.owned[module].values())
        self._keep(name for name in covered if uses[name] == 1)
        self.onepass = onepass = self._tap()
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

    def _keep(self, names: Iterable[str]) -> None:
        kept = set(names)
        self.layers = {
            n: m for n, m in self.layers.items() if n in kept and (n not in self.biased or bias_of(n) in kept)
        }
        self.biased &= set(self.layers)

    def _read(self, visitor: Callable[[Iterable[R]], Visitor], readers: Mapping[str, R]) -> None:
        """One pass over the samples: every layer's reader is shown what goes in and what comes back."""
        if not readers:
            return
        onepass = self.onepass
        rng = np.random.default_rng([self.options.seed, 1])
        with onepass.tapped():
            for batch in self.data:
                length = batch_length(batch)
                with onepass.listening():
                    output, target = self.forward(self.model, batch)
                    cotangents = self.options._directions(output, target, length, rng)
                    try:
                        onepass.backward(output, cotangents, length, visitor(readers.values()))
                    except Unsupported as reason:
                        raise ValueError(
                            f"Kronecker: {reason}; give it batches that the model treats alike, or use drcl.Fisher()"
                        ) from None

    def diagonal(self) -> dict[str, Tensor]:
        """The mean squared gradients of everything that has no basis."""
        covered = self._covered()
        rest = {name: p for name, p in self.parameters.items() if name not in covered}
        if not rest:
            return {}
        return replace(_fisher(self.options), samples=self.samples).estimate(self.model, self.data, rest, self.forward)

    def bases(self, history: History, rest: Mapping[str, Tensor]) -> tuple[dict[str, Eigenbasis], float]:
        """All layers' bases, and the unit of everything that has none, whose importance is `rest`."""
        diagonal = sum(float(t.double().sum()) for t in rest.values())
        traces = {}
        for name, f in self.factors.items():
            f.a.div_(max(f.samples, 1))
            f.g.div_(max(f.samples, 1))
            traces[name] = self._product_trace(name, f.a, f.g)
        units, unit = self._units(traces, diagonal, history)
        found = {name: self._basis(name, history, units[name]) for name in self.layers}
        if self.options.eigenvalues == "exact":
            found, unit = self._with_exact_eigenvalues(found, history, diagonal)
        return found, unit

    def _units(self, traces: Mapping[str, float], diagonal: float, history: History) -> tuple[dict[str, float], float]:
        """What this task's importance is multiplied by in each layer, and outside of them."""
        unit, total = 1.0, sum(traces.values()) + diagonal
        wanted = task_sum(history.normalise, sum(p.numel() for p in self.parameters.values()))
        if wanted is not None and 0 < total < float("inf"):
            unit = wanted / total
        return dict.fromkeys(traces, unit), unit

    def _basis(self, name: str, history: History, unit: float) -> Eigenbasis:
        """This task's factors and the earlier ones', their eigenvectors, and the product of their eigenvalues."""
        f = self.factors[name]
        a, g, count = f.a, f.g * unit, 1.0
        old = self._fitting(name, history)
        if old is not None:
            a.add_(old.input_factor, alpha=history.keep)
            g.add_(old.output_factor, alpha=history.keep)
            count += history.keep * old.count
        elif history.keep and name in history.importance:
            _add_diagonal(a, g, self._earlier(name, history), history.keep)
            count += history.keep
        u = eigenvectors(a, self.options.rank) if a.ndim == 3 else None
        v = eigenvectors(g, self.options.rank) if g.ndim == 3 else None
        inputs, outputs = _along(a, u), _along(g, v)
        values = (outputs[:, None, :, None] * inputs[:, None, None, :] / count).clamp_(min=0)
        values = values.expand(-1, f.positions, -1, -1).contiguous()
        return Eigenbasis(u, v, values, a, g, name in self.biased, count)

    def _product_trace(self, name: str, a: Tensor, g: Tensor) -> float:
        """The importance of all directions together, as the factors have it."""
        return float((_trace(a) * _trace(g)).double().sum()) * self.factors[name].positions

    def _with_exact_eigenvalues(
        self, bases: dict[str, Eigenbasis], history: History, diagonal: float
    ) -> tuple[dict[str, Eigenbasis], float]:
        readers = {name: Eigenvalues(self.layers[name], basis) for name, basis in bases.items()}
        self._read(EigenvalueVisitor, readers)
        found = {}
        traces = {name: reader.trace() / self.samples for name, reader in readers.items()}
        units, unit = self._units(traces, diagonal, history)
        for name, basis in bases.items():
            values = readers[name].means(self.samples) * units[name]
            old = self._fitting(name, history)
            if old is not None:
                values.add_(old.seen_in(basis), alpha=history.keep * history.mean)
            elif history.keep and name in history.importance:
                values.add_(basis.see(*self._earlier(name, history)), alpha=history.keep)
            found[name] = replace(basis, eigenvalues=values.clamp_(min=0))
        return found, unit

    def _fitting(self, name: str, history: History) -> Eigenbasis | None:
        """The layer's earlier basis, if it was made with the same options."""
        old, f = history.bases.get(name), self.factors[name]
        if old is None or not history.keep:
            return None
        same = old.input_factor.shape == f.a.shape and old.output_factor.shape == f.g.shape
        same = same and old.bias == f.bias and old.eigenvalues.shape[1] == f.positions
        return old if same else None

    def _earlier(self, name: str, history: History) -> tuple[Tensor, Tensor | None]:
        """What single weights mattered to earlier tasks, in the estimator's units."""
        f = self.factors[name]
        weight = as_matrix(history.importance[name].to(f.a.dtype), f.groups, f.positions) * history.mean
        if not f.bias:
            return weight, None
        return weight, history.importance[bias_of(name)].to(f.a.dtype).reshape(f.groups, 1, -1) * history.mean


def _fisher(options: Kronecker) -> Fisher:
    return Fisher(options.samples, options.labels, options.loss, options.seed, options.batch_size)


def _trace(factor: Tensor) -> Tensor:
    diagonal = factor if factor.ndim == 2 else factor.diagonal(dim1=-2, dim2=-1)
    return diagonal.sum(-1, keepdim=True)


def _along(factor: Tensor, directions: Tensor | None) -> Tensor:
    """u^T factor u for every direction u, and its mean over what they leave out if they do."""
    if directions is None:
        return factor
    along, (n, kept) = (directions * (factor @ directions)).sum(1), directions.shape[1:]
    if kept == n:
        return along
    return torch.cat([along, (_trace(factor) - along.sum(-1, keepdim=True)).clamp_(min=0) / (n - kept)], -1)


def _add_diagonal(a: Tensor, g: Tensor, earlier: tuple[Tensor, Tensor | None], keep: float) -> None:
    """Add factors whose product has the row sums and column sums of an earlier, diagonal importance."""
    weight, bias = earlier
    whole = weight if bias is None else torch.cat([weight, bias[..., None]], -1)
    inputs, outputs = whole.sum((1, 2)), whole.sum((1, 3))
    total, size = inputs.sum(-1, keepdim=True), _trace(a)
    usable = (total > 0) & (size > 0)
    inputs = torch.where(usable, inputs * size / total, 0.0)
    outputs = torch.where(usable, outputs / (size * whole.shape[1]), 0.0)
    for factor, more in ((a, inputs), (g, outputs)):
        (factor if factor.ndim == 2 else factor.diagonal(dim1=-2, dim2=-1)).add_(more, alpha=keep)
