"""The splitting step of layers that are held along the directions of an eigenbasis instead of weight by weight.

With s what plain SGD would subtract, the step is the one of `drcl.splitting.kernels`, except that the proximal map is
taken on the coordinates of r - a in the eigenbasis (`drcl.directions.coordinates`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from drcl.directions.basis import Eigenbasis, as_weight
from drcl.directions.coordinates import Coordinates
from drcl.prox import Prox
from drcl.splitting.kernels import Rule, Weight, proposal

if TYPE_CHECKING:
    from drcl.optimizer import DRCL


@dataclass
class Layer:
    """An eigenbasis and the bias that is part of it, if one is."""

    basis: Eigenbasis
    bias: Tensor | None


def check_prox(prox: Prox) -> None:
    if Rule(1.0, 1.0, 1.0, prox).mix is None:
        raise ValueError(
            f"prox={prox!r} speaks of single weights, which drcl.Kronecker has turned into directions; use prox='l1', "
            "'l2' or 'elastic' with it, or importance=drcl.Fisher()"
        )


@dataclass
class Proposal:
    """One layer between its proposal and its settlement."""

    layer: Layer
    weight: Weight
    bias: Weight | None
    steps: list[tuple[Weight, Tensor | None, Tensor]] = field(default_factory=list)  # (which, s, r)
    at: Coordinates | None = None  # r - a in the eigenbasis


def split(layers: Mapping[Tensor, Layer], weights: Sequence[Weight]) -> tuple[list[Proposal], list[Weight]]:
    """The layers among these weights, and the weights that stand alone."""
    if not layers:
        return [], list(weights)
    by_parameter = {w.y: w for w in weights}
    found, taken = [], set()
    for w in weights:
        layer = layers.get(w.y)
        if layer is not None:
            # A bias without a gradient stays where it is; one whose weight has none is held by itself.
            bias = None if layer.bias is None else by_parameter.get(layer.bias)
            found.append(Proposal(layer, w, bias))
            taken |= {w.y} if bias is None else {w.y, bias.y}
    return found, [w for w in weights if w.y not in taken]


def propose(p: Proposal, rule: Rule, rotate: bool) -> None:
    """s and r of the layer, its momentum advanced; and r - a along the directions."""
    wide = p.layer.basis.eigenvalues.dtype
    for w in (p.weight, p.bias):
        if w is None:
            continue
        y = w.y.to(wide)
        if w.done:
            p.steps.append((w, None, y))
            continue
        buffer = None if w.buffer is None else w.buffer.to(wide)
        s = proposal(y, w.g.to(wide), buffer, w.first, rule)
        if w.buffer is not None and buffer is not None and buffer is not w.buffer:
            w.buffer.copy_(buffer)
        p.steps.append((w, s, torch.sub(y, s, alpha=2 if rule.reflect else 1)))
    if rotate:
        pairs = [(r, w.anchor.to(wide)) for w, _, r in p.steps]
        p.at = Coordinates(p.layer.basis, p.layer.basis.difference(pairs[0], pairs[1] if len(pairs) > 1 else None))


def settle(p: Proposal, rule: Rule) -> None:
    """z by the prox along the directions, y' = z + s."""
    change, basis = None, p.layer.basis
    if not math.isinf(rule.strength):
        assert p.at is not None
        change = p.at.settled(rule)
    for k, (w, s, r) in enumerate(p.steps):
        if change is None:
            z = w.anchor
        else:
            n = change.shape[-1] - int(basis.bias)
            part = as_weight(change[..., :n], w.y) if k == 0 else change[..., n:].reshape(w.y.shape)
            z = torch.add(w.anchor, part, out=w.y if w.done and w.y.dtype == part.dtype else None)
        if w.z is not None:
            w.z.copy_(z)
        if rule.reflect:
            assert s is not None
            w.y.copy_(z.to(r.dtype) + s)
        elif z is not w.y:
            w.y.copy_(z)


# -- being stored ----------------------------------------------------------------------------------------------------


def saved(optimizer: DRCL) -> list[dict[str, Any]]:
    """The layers as tensors and plain values, by the position of their parameters."""
    order = {p: i for i, p in enumerate(q for g in optimizer.param_groups for q in g["params"])}
    return [
        {
            "weight": order[p],
            "bias_at": None if layer.bias is None else order[layer.bias],
            **layer.basis.facts(),
            **{name: t.clone() for name, t in layer.basis.tensors().items()},
        }
        for p, layer in optimizer._layers.items()
    ]


def loaded(optimizer: DRCL, entries: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Tensor, Layer]]:
    """Copies of `saved` layers, checked against this optimizer's parameters."""
    from drcl.state import importance_dtype

    order = [p for g in optimizer.param_groups for p in g["params"]]
    for entry in entries:
        weight = order[entry["weight"]]
        bias = None if entry["bias_at"] is None else order[entry["bias_at"]]
        tensors = {name: t for name, t in entry.items() if isinstance(t, Tensor)}
        basis = Eigenbasis.restored(tensors, entry)
        try:
            basis.check(weight)
        except ValueError as reason:
            raise ValueError(
                f"parameter {optimizer.name_of(weight)!r}: {reason}; load it into an optimizer over the same model"
            ) from None
        yield weight, Layer(basis.cast(weight, importance_dtype(weight)), bias)
