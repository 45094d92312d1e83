"""Drift: what moved away from an anchor, or between two moments, layer by layer."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from drcl import sharding
from drcl.anchor import Anchor, adapters_in, own_names
from drcl.directions.adapters import gathered, product
from drcl.directions.basis import bias_of
from drcl.preserve import check_model

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class LayerDrift:
    """One row: a layer's protected weights now, against the anchor."""

    layer: str
    weights: int
    unmoved: float  # share bit-equal to the anchor
    mean_change: float  # mean |w - a|
    largest_change: float
    relative_change: float  # |w - a|_2 / |a|_2; NaN where the anchor is zero and the weights are not
    directions_unmoved: float = math.nan  # with a Kronecker basis: share of its directions, up to rounding


@dataclass(frozen=True)
class Drift:
    """A table of layers with a total. Prints as text; ``to_pandas()`` where pandas is installed."""

    rows: tuple[LayerDrift, ...]
    total: LayerDrift
    effective_stability: float  # share of weights with |w - a| < 0.05 |a|, as the paper counts
    stiffness: float  # |w - a|_2 over all protected weights: the paper's name; larger means it moved more
    strict_stability: float  # share of weights with |w - a| < 0.001 |a|

    def __iter__(self) -> Iterator[LayerDrift]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def largest(self, n: int = 5) -> tuple[LayerDrift, ...]:
        """The layers that moved most, by relative change; layers that were zero and moved come first."""
        if isinstance(n, bool) or not isinstance(n, int) or n < 0:
            raise ValueError(f"n={n!r} must be a whole number of layers, 0 or more")
        size = {r.layer: math.inf if math.isnan(r.relative_change) else r.relative_change for r in self.rows}
        return tuple(sorted(self.rows, key=lambda r: -size[r.layer])[:n])

    def to_pandas(self) -> pandas.DataFrame:
        try:
            import pandas
        except ModuleNotFoundError:
            raise ModuleNotFoundError("to_pandas() needs pandas; install it with: pip install pandas") from None
        frame = pandas.DataFrame([asdict(row) for row in self.rows]).set_index("layer")
        return frame.drop(columns="directions_unmoved") if math.isnan(self.total.directions_unmoved) else frame

    def __str__(self) -> str:
        head: tuple[str, ...] = ("layer", "weights", "unmoved", "mean change", "largest", "relative")
        body = [_cells(row) for row in (*self.rows, self.total)]
        if not math.isnan(self.total.directions_unmoved):
            shares = [r.directions_unmoved for r in (*self.rows, self.total)]
            head = (*head, "directions")
            body = [(*cells, "–" if math.isnan(x) else f"{x:.1%}") for cells, x in zip(body, shares)]
        width = [max(len(line[i]) for line in (head, *body)) for i in range(len(head))]
        rule = "  ".join("─" * w for w in width)

        def line(cells: tuple[str, ...]) -> str:
            return "  ".join([cells[0].ljust(width[0]), *(c.rjust(w) for c, w in zip(cells[1:], width[1:]))])

        foot = (
            f"effective stability {self.effective_stability:.1%} (moved less than 5 %), stiffness {self.stiffness:.4g}"
        )
        return "\n".join([line(head), rule, *map(line, body[:-1]), rule, line(body[-1]), "", foot])

    __repr__ = __str__


def _cells(row: LayerDrift) -> tuple[str, ...]:
    numbers = (row.mean_change, row.largest_change, row.relative_change)
    return (row.layer, f"{row.weights:,}", f"{row.unmoved:.1%}", *(f"{x:.3g}" for x in numbers))


class _Sums(NamedTuple):
    """How a tensor's weights moved, as sums that add up over tensors and layers."""

    weights: int
    unmoved: int
    within: int  # moved by less than 5 % of their size
    strictly_within: int  # by less than 0.1 %
    change: float
    squared_change: float
    squared_size: float
    largest_change: float

    def plus(self, other: _Sums) -> _Sums:
        """Both together."""
        added = _Sums._make(mine + its for mine, its in zip(self, other))
        return added._replace(largest_change=max(self.largest_change, other.largest_change))

    def row(self, layer: str, unmoved_directions: float) -> LayerDrift:
        relative = 0.0 if self.squared_change == 0 else math.nan  # if the anchor is zero
        return LayerDrift(
            layer=layer,
            weights=self.weights,
            unmoved=self.unmoved / self.weights,
            mean_change=self.change / self.weights,
            largest_change=self.largest_change,
            relative_change=math.sqrt(self.squared_change / self.squared_size) if self.squared_size else relative,
            directions_unmoved=unmoved_directions / self.weights,
        )


def _sums(old: Tensor, new: Tensor) -> _Sums:
    # Double precision represents every smaller format exactly.
    same, change, size = new == old, (new.double() - old.double()).abs(), old.double().abs()
    return _Sums(
        weights=old.numel(),
        unmoved=int(same.sum()),
        within=int((same | (change < 0.05 * size)).sum()),
        strictly_within=int((same | (change < 0.001 * size)).sum()),
        change=float(change.sum()),
        squared_change=float(change.square().sum()),
        squared_size=float(size.square().sum()),
        largest_change=float(change.max()),
    )


def _table(pairs: Mapping[str, tuple[Tensor, Tensor]], directions: Mapping[str, int]) -> Drift:
    """The table of (old, new) tensors; `directions` has the number of unmoved directions of tensors with a basis."""
    tensors = {name: _sums(old, new) for name, (old, new) in pairs.items() if old.numel()}
    if not tensors:
        raise ValueError("every one of these parameters is empty: there is nothing to compare")
    layers: dict[str, dict[str, _Sums]] = {}
    for name, found in tensors.items():
        layers.setdefault(name.rpartition(".")[0] or name, {})[name] = found

    def unmoved(members: Mapping[str, _Sums]) -> float:
        if not directions.keys() & members:
            return math.nan
        return float(sum(directions.get(name, found.unmoved) for name, found in members.items()))

    sums = {layer: functools.reduce(_Sums.plus, members.values()) for layer, members in layers.items()}
    total = functools.reduce(_Sums.plus, sums.values())
    return Drift(
        rows=tuple(sums[layer].row(layer, unmoved(members)) for layer, members in layers.items()),
        total=total.row("total", unmoved(tensors)),
        effective_stability=total.within / total.weights,
        stiffness=math.sqrt(total.squared_change),
        strict_stability=total.strictly_within / total.weights,
    )


@torch.no_grad()
def between(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> Drift:
    """How far weights moved between two moments; each moment is a dict of tensors by name.

    >>> between({"fc.weight": torch.tensor([1.0, 2.0])}, {"fc.weight": torch.tensor([1.0, 3.0])}).total.unmoved
    0.5
    """
    for word, given in (("before", before), ("after", after)):
        if not isinstance(given, Mapping) or not all(isinstance(t, Tensor) for t in given.values()):
            raise TypeError(f"{word} must be tensors by name, such as dict(model.named_parameters()), not {given!r}")
    alone = sorted(before.keys() ^ after.keys())
    if alone:
        raise ValueError(f"{alone[0]!r} is in only one of before and after; compare the same parameters")
    for name, old in before.items():
        if old.shape != after[name].shape:
            told = f"{tuple(old.shape)} before and {tuple(after[name].shape)} after"
            raise ValueError(f"{name!r} has shape {told}; they must agree")
    return _table({name: (sharding.full(old), sharding.full(after[name])) for name, old in before.items()}, {})


def _unmoved_directions(anchor: Anchor, own: dict[str, Tensor], name: str) -> int:
    """The number of directions along which a layer's weights have not moved, apart from rounding.

    Directions outside the basis count as unmoved only if the whole layer is.
    """
    basis = anchor.bases[name]
    names = [name, bias_of(name)] if basis.bias else [name]
    pairs = [(own[n], anchor.weights[n].to(own[n].device)) for n in names]
    if all(torch.equal(w, a) for w, a in pairs):
        return sum(w.numel() for w, _ in pairs)
    basis = basis.cast(pairs[0][0], torch.float64)
    exact = [(w.double(), a.double()) for w, a in pairs]
    d = basis.rotate(basis.difference(exact[0], exact[1] if basis.bias else None))
    # Rounding of the weights shows in every direction.
    rounding = torch.finfo(pairs[0][0].dtype).eps * max(float(torch.maximum(w.abs(), a.abs()).max()) for w, a in pairs)
    return int((d.abs() <= 16 * rounding).sum())


@torch.no_grad()
def drift(model: nn.Module, anchor: Anchor) -> Drift:
    """How far the model's weights are from an anchor.

    While a DRCL optimizer trains, the model holds y; ask inside ``with opt.deployed():`` to see what will be shipped.

    Examples:
        >>> model = torch.nn.Linear(2, 2)
        >>> before = Anchor({n: p.detach().clone() for n, p in model.named_parameters()},
        ...                 {n: torch.ones_like(p) for n, p in model.named_parameters()})
        >>> drift(model, before).total.unmoved
        1.0
    """
    check_model(model, "drift(model, anchor)")
    if not isinstance(anchor, Anchor):
        raise TypeError(f"anchor must be a drcl.Anchor, not {type(anchor).__name__}: opt.anchor, or Anchor.load(path)")
    anchor.check(model)
    own = {n: sharding.full(p.detach()) for n, p in own_names(model).items()}
    # In the model's order; a file may have another one.
    pairs = {name: (anchor.weights[name].to(w.device), w) for name, w in own.items() if name in anchor.weights}
    for name, pair in adapters_in(model, anchor).items():
        saved, weight = anchor.adapters[name], sharding.full(pair.weight.detach()).flatten(1).float()
        now = product(*gathered(pair.a, pair.b), pair.scale, pair.turned).float()
        without = weight - now if pair.merged else weight
        before = without if pair.has_merged(saved) else without + saved.product().to(weight)
        pairs[name] = before, without + now
    held: dict[str, int] = {}
    for name, basis in anchor.bases.items():
        held[name] = _unmoved_directions(anchor, own, name)
        held |= {bias_of(name): 0} if basis.bias else {}  # counted with its weight
    return _table(pairs, held)
