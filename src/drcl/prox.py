"""Proximal maps about an anchor: the stability half of the negotiation.

Each map solves, weight by weight or group by group,

    argmin_w  penalty(w - anchor)  +  |w - r|^2 / 2

where the penalty is scaled by ``threshold`` (the optimizer passes gamma * strength * importance). A weight the
penalty holds is *selected* from the anchor, not computed, so it is equal bit for bit. Any callable
``f(r, anchor, threshold) -> tensor`` can stand in for these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


def per_step_threshold(gamma: float, strength: float, importance: Tensor) -> Tensor:
    """gamma * strength * importance, infinite everywhere when the strength is."""
    if strength == float("inf"):
        return torch.full_like(importance, float("inf"))
    return importance * (gamma * strength)


@dataclass(frozen=True)
class L1:
    """penalty = sum threshold * |w - anchor|: soft thresholding. Small proposals are rejected exactly."""

    def __call__(self, r: Tensor, anchor: Tensor, threshold: Tensor | float) -> Tensor:
        threshold = torch.as_tensor(threshold, dtype=r.dtype, device=r.device)
        d = r - anchor
        return torch.where(d.abs() > threshold, r - torch.copysign(threshold, d), anchor)

    threshold = staticmethod(per_step_threshold)


@dataclass(frozen=True)
class L2:
    """penalty = sum threshold/2 * (w - anchor)^2: every weight is pulled back, none is held exactly."""

    def __call__(self, r: Tensor, anchor: Tensor, threshold: Tensor | float) -> Tensor:
        threshold = torch.as_tensor(threshold, dtype=r.dtype, device=r.device)
        d = (r - anchor) / (1 + threshold)
        return torch.where(d == 0, anchor, anchor + d)

    threshold = staticmethod(per_step_threshold)


@dataclass(frozen=True)
class ElasticNet:
    """penalty = threshold * (mix * |w - anchor| + (1 - mix)/2 * (w - anchor)^2), with 0 <= mix <= 1."""

    mix: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.mix <= 1:
            raise ValueError(f"ElasticNet: mix is {self.mix}, it must lie in [0, 1] (1 is L1, 0 is L2)")

    def __call__(self, r: Tensor, anchor: Tensor, threshold: Tensor | float) -> Tensor:
        threshold = torch.as_tensor(threshold, dtype=r.dtype, device=r.device)
        # 0 * inf is NaN, so the two halves are only scaled where they count.
        bound = threshold * self.mix if self.mix else torch.zeros_like(threshold)
        shrink = 1 + threshold * (1 - self.mix) if self.mix < 1 else torch.ones_like(threshold)
        d = r - anchor
        moves = (d.abs() > bound) & (threshold < float("inf"))
        return torch.where(moves, anchor + (d - torch.copysign(bound, d)) / shrink, anchor)

    threshold = staticmethod(per_step_threshold)


@dataclass(frozen=True)
class GroupL1:
    """penalty = sum over groups of |threshold_g|_2 * |(w - anchor)_g|_2: a whole row or filter moves, or none of it.

    Groups run along ``dim``: with 0 a group is everything that feeds one output unit (a row of a Linear, a filter
    of a convolution). In a vector, whatever ``dim``, each entry is its own group. With equal thresholds t the weight
    of a group of n is t * sqrt(n), the usual choice.
    """

    dim: int = 0

    def __call__(self, r: Tensor, anchor: Tensor, threshold: Tensor | float) -> Tensor:
        threshold = torch.as_tensor(threshold, dtype=r.dtype, device=r.device).expand_as(r)
        d = r - anchor
        if r.dim() < 2:
            size, bound = d.abs(), threshold
        else:
            if not -r.dim() <= self.dim < r.dim():
                raise ValueError(f"GroupL1: dim is {self.dim}, but a parameter has shape {tuple(r.shape)}")
            rest = [i for i in range(r.dim()) if i != self.dim % r.dim()]
            size, bound = _norm(d, rest), _norm(threshold, rest)
        held = size <= bound
        scale = 1 - torch.where(held, torch.ones_like(size), bound / torch.where(held, torch.ones_like(size), size))
        return torch.where(held, anchor, anchor + d * scale)

    threshold = staticmethod(per_step_threshold)


def _norm(x: Tensor, dim: list[int]) -> Tensor:
    """The Euclidean norm over these dimensions, also where squares would vanish or overflow."""
    largest = x.abs().amax(dim, keepdim=True)
    unit = torch.where((largest > 0) & largest.isfinite(), largest, torch.ones_like(largest))
    return torch.linalg.vector_norm(x / unit, dim=dim, keepdim=True) * unit


@dataclass(frozen=True)
class Box:
    """A hard bound, |w - anchor| <= threshold: the projection on a box about the anchor.

    An indicator has no gamma, and a more important weight must get a *narrower* box, so the optimizer asks for
    1 / (strength * importance): strength 0 leaves every weight free, infinite strength leaves none.
    """

    def __call__(self, r: Tensor, anchor: Tensor, threshold: Tensor | float) -> Tensor:
        threshold = torch.as_tensor(threshold, dtype=r.dtype, device=r.device)
        inside = torch.minimum(torch.maximum(r, anchor - threshold), anchor + threshold)
        return torch.where((r == anchor) | (threshold == 0), anchor, inside)

    @staticmethod
    def threshold(gamma: float, strength: float, importance: Tensor) -> Tensor:
        if strength == float("inf"):
            return torch.zeros_like(importance)
        return 1 / (strength * importance)


Prox = Callable[[Tensor, Tensor, Tensor], Tensor]
NAMED: dict[str, Callable[[], Prox]] = {
    "l1": L1,
    "l2": L2,
    "elastic": ElasticNet,
    "group": GroupL1,
    "box": Box,
}


def resolve(prox: str | Prox) -> Prox:
    """A prox by name, or the caller's own callable as it is."""
    if callable(prox):
        return prox
    if not isinstance(prox, str) or prox not in NAMED:
        raise ValueError(f"prox={prox!r} is unknown; use one of {', '.join(map(repr, NAMED))} or a callable")
    return NAMED[prox]()
