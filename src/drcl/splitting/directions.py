"""The splitting step of layers that are held along the directions of an eigenbasis instead of weight by weight.

With s what plain SGD would subtract, the step is the one of `drcl.splitting.kernels`, except that the proximal map is
taken on the coordinates of r - a in the eigenbasis (`drcl.directions.coordinates`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from drcl import sharding
from drcl.directions.basis import Eigenbasis, as_weight
from drcl.directions.coordinates import Coordinates
from drcl.directions.rows import RowCoordinates, rows_of
from drcl.splitting.kernels import Step, Weight, displacement


@dataclass
class Layer:
    """An eigenbasis, and the bias that it includes, if any."""

    basis: Eigenbasis
    bias: Tensor | None


@dataclass
class Part:
    """A layer's weight or bias on its way from r to z; if it is sharded, the shard."""

    y: Tensor
    anchor: Tensor
    r: Tensor
    s: Tensor | None  # y - x; None if y already holds x, which without reflection is r
    z: Tensor | None = None
    of: Tensor | None = None  # the parameter, if it is sharded

    @classmethod
    def proposed(cls, w: Weight, step: Step, wide: torch.dtype) -> Part:
        """From a gradient, whose momentum is updated, or from a finished displacement."""
        of, w = w.y, w.seen(sharding.local)
        y, buffer = w.y.to(wide), None if w.buffer is None else w.buffer.to(wide)
        s = displacement(y, w.g.to(wide), buffer, w.first, step)
        if w.buffer is not None and buffer is not None and buffer is not w.buffer:
            w.buffer.copy_(buffer)
        return cls(w.y, w.anchor, torch.sub(y, s, alpha=2 if step.reflect else 1), s, w.z, _if_sharded(of))

    @classmethod
    def finished(cls, x: Tensor, anchor: Tensor, wide: torch.dtype) -> Part:
        """Without reflection the parameter goes from x, which it already holds, to z, and y is not needed."""
        y = sharding.local(x)
        return cls(y, sharding.local(anchor), y.to(wide), None, of=_if_sharded(x))

    def pair(self, gather: bool) -> tuple[Tensor, Tensor]:
        """r and a. If a sharded parameter is gathered, their difference and zero: half as much to send."""
        anchor = self.anchor.to(self.r.dtype)
        if self.of is None or not gather:
            return self.r, anchor
        whole = sharding.gathered(self.r - anchor, self.of)
        return whole, whole.new_zeros(()).expand(whole.shape)


def _if_sharded(p: Tensor) -> Tensor | None:
    return p if sharding.is_sharded(p) else None


class LayerStep:
    """One layer between its proposal and its negotiation: its weight, and its bias if that moves too."""

    def __init__(self, basis: Eigenbasis, parts: list[Part], rotate: bool) -> None:
        self.basis, self.parts = basis, parts
        self.at: Coordinates | None = None  # r - a in the eigenbasis
        mine = rows_of(basis, [part.of for part in parts])
        self.gathers = mine is None
        if rotate:
            pairs = [part.pair(self.gathers) for part in parts]
            d = basis.difference(pairs[0], pairs[1] if len(pairs) > 1 else None)
            self.at = Coordinates(basis, d) if mine is None else RowCoordinates(basis, d, mine)

    def settle(self, step: Step) -> None:
        """z by the prox along the directions, y' = z + s."""
        change = None  # with an infinite strength every weight is back at its anchor
        if not math.isinf(step.penalty.strength):
            assert self.at is not None
            change = self.at.settled(step.penalty)
        for k, part in enumerate(self.parts):
            y, z = part.y, part.anchor
            if change is not None:
                n = change.shape[-1] - int(self.basis.bias)
                like = part.of if self.gathers and part.of is not None else y
                move = as_weight(change[..., :n], like) if k == 0 else change[..., n:].reshape(like.shape)
                move = sharding.part(move, like)
                z = torch.add(part.anchor, move, out=y if part.s is None and y.dtype == move.dtype else None)
            if part.z is not None:
                part.z.copy_(z)
            if step.reflect:
                assert part.s is not None
                y.copy_(z.to(part.r.dtype) + part.s)
            elif z is not y:
                y.copy_(z)


def split(layers: Mapping[Tensor, Layer], weights: Sequence[Weight]) -> tuple[list[list[Weight]], list[Weight]]:
    """The layers among these weights, each with the bias that moves with it, and the remaining weights."""
    if not layers:
        return [], list(weights)
    by_parameter = {w.y: w for w in weights}
    found, taken = [], set()
    for w in weights:
        layer = layers.get(w.y)
        if layer is not None:
            # A bias without a gradient stays where it is; one whose weight has none is held by itself.
            bias = None if layer.bias is None else by_parameter.get(layer.bias)
            found.append([w] if bias is None else [w, bias])
            taken |= {part.y for part in found[-1]}
    return found, [w for w in weights if w.y not in taken]
