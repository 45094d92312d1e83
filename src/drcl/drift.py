"""Drift: what moved away from an anchor, layer by layer."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from drcl.anchor import Anchor, own_names
from drcl.directions.basis import bias_of

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

    def __iter__(self) -> Iterator[LayerDrift]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def largest(self, n: int = 5) -> tuple[LayerDrift, ...]:
        """The layers that moved most, by relative change; one that left zero first of all."""
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


def _row(layer: str, pairs: list[tuple[Tensor, Tensor]], unmoved_directions: float = math.nan) -> LayerDrift:
    count = sum(w.numel() for w, _ in pairs)
    change = [(w.double() - a.double()) for w, a in pairs]
    size = math.sqrt(sum(float(a.double().square().sum()) for _, a in pairs))
    moved = math.sqrt(sum(float(c.square().sum()) for c in change))
    return LayerDrift(
        layer=layer,
        weights=count,
        unmoved=sum(int((w == a).sum()) for w, a in pairs) / count,
        mean_change=sum(float(c.abs().sum()) for c in change) / count,
        largest_change=max(float(c.abs().max()) for c in change),
        relative_change=moved / size if size else (0.0 if moved == 0 else math.nan),
        directions_unmoved=unmoved_directions / count,
    )


def _unmoved_directions(anchor: Anchor, own: dict[str, Tensor], name: str) -> int:
    """How many directions of a layer's basis the weights have not moved along, beyond rounding.

    Directions that the basis left out are unmoved only where the whole layer is.
    """
    basis = anchor.bases[name]
    names = [name, bias_of(name)] if basis.bias else [name]
    pairs = [(own[n], anchor.weights[n].to(own[n].device)) for n in names]
    if all(torch.equal(w, a) for w, a in pairs):
        return sum(w.numel() for w, _ in pairs)
    basis = basis.cast(pairs[0][0], torch.float64)
    exact = [(w.double(), a.double()) for w, a in pairs]
    d = basis.rotate(basis.difference(exact[0], exact[1] if basis.bias else None))
    # The weights themselves are rounded, and every direction gets a share of that.
    rounding = torch.finfo(pairs[0][0].dtype).eps * max(float(torch.maximum(w.abs(), a.abs()).max()) for w, a in pairs)
    return int((d.abs() <= 16 * rounding).sum())


@torch.no_grad()
def drift(model: nn.Module, anchor: Anchor) -> Drift:
    """How far the model's weights are from an anchor.

    >>> model = torch.nn.Linear(2, 2)
    >>> before = Anchor({n: p.detach().clone() for n, p in model.named_parameters()},
    ...                 {n: torch.ones_like(p) for n, p in model.named_parameters()})
    >>> drift(model, before).total.unmoved
    1.0

    While a DRCL optimizer trains, the model holds y; ask inside ``with opt.deployed():`` to see what will be shipped.
    """
    anchor.check(model)
    own = {n: p.detach() for n, p in own_names(model).items()}
    layers: dict[str, list[tuple[Tensor, Tensor]]] = {}
    members: dict[str, set[str]] = {}
    for name, w in own.items():  # in the model's order; a file keeps its own
        if name in anchor.weights and w.numel():
            layer = name.rpartition(".")[0] or name
            layers.setdefault(layer, []).append((w, anchor.weights[name].to(w.device)))
            members.setdefault(layer, set()).add(name)
    everything = [pair for pairs in layers.values() for pair in pairs]
    if not everything:
        raise ValueError("every parameter of this anchor is empty: there is nothing to compare")
    held = {}
    for name, basis in anchor.bases.items():
        held[name] = _unmoved_directions(anchor, own, name)
        held |= {bias_of(name): 0} if basis.bias else {}  # counted with its weight
    alone = {n: int((own[n] == a.to(own[n].device)).sum()) for n, a in anchor.weights.items() if n not in held}
    directions = {
        layer: float(sum((held | alone)[n] for n in names)) if held.keys() & names else math.nan
        for layer, names in members.items()
    }
    total = _row("total", everything, float(sum((held | alone).values())) if held else math.nan)
    small = sum(
        int((((w.double() - a.double()).abs() < 0.05 * a.double().abs()) | (w == a)).sum()) for w, a in everything
    )
    stiffness = math.sqrt(sum(float((w.double() - a.double()).square().sum()) for w, a in everything))
    rows = tuple(_row(layer, pairs, directions[layer]) for layer, pairs in layers.items())
    return Drift(rows, total, small / total.weights, stiffness)
