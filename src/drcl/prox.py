"""Proximal maps about an anchor: the stability half of the negotiation.

Each map solves, weight by weight or group by group,

    argmin_w  penalty(w - anchor)  +  |w - r|^2 / 2

where the penalty is scaled by ``threshold`` (the optimizer passes gamma * strength * importance). A weight the
penalty holds is *selected* from the anchor, not computed, so it is equal bit for bit. ``penalty(w, anchor, weight)`` is
the value of the penalty. Any callable ``f(r, anchor, threshold) -> tensor`` can replace these; its penalty is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


def per_step_threshold(gamma: float, strength: float, importance: Tensor) -> Tensor:
    """gamma * strength * importance, infinite everywhere when the strength is."""
    if strength == float("inf"):
        return torch.full_like(importance, float("inf"))
    return importance * (gamma * strength)


def _as_threshold(
    r: Tensor, anchor: Tensor, threshold: Tensor | float, weights: str = "r", name: str = "threshold"
) -> Tensor:
    """The threshold as a tensor like r, after checking the arguments; the last two are their names in messages."""
    for word, given in ((weights, r), ("anchor", anchor)):
        if not isinstance(given, Tensor):
            raise TypeError(f"{word} must be a tensor of weights, not {type(given).__name__}")
    if not isinstance(threshold, Tensor | int | float):
        raise TypeError(f"{name} must be a tensor or a number >= 0, not {type(threshold).__name__}")
    return torch.as_tensor(threshold, dtype=r.dtype, device=r.device)


def _weighted(values: Tensor, weight: Tensor | float) -> Tensor:
    """The sum of weight * values, where infinity times zero is zero."""
    return torch.where(values == 0, values, values * weight).sum()


@dataclass(frozen=True)
class L1:
    """penalty = sum threshold * |w - anchor|: soft thresholding. Small proposals are rejected exactly."""

    def __call__(self, r: Tensor, anchor: Tensor, threshold: Tensor | float) -> Tensor:
        threshold = _as_threshold(r, anchor, threshold)
        d = r - anchor
        return torch.where(d.abs() > threshold, r - torch.copysign(threshold, d), anchor)

    def penalty(self, w: Tensor, anchor: Tensor, weight: Tensor | float) -> Tensor:
        """sum weight * |w - anchor|"""
        _as_threshold(w, anchor, weight, "w", "weight")
        return _weighted((w - anchor).abs(), weight)

    threshold = staticmethod(per_step_threshold)


@dataclass(frozen=True)
class L2:
    """penalty = sum threshold/2 * (w - anchor)^2: every weight is pulled back, none is held exactly."""

    def __call__(self, r: Tensor, anchor: Tensor, threshold: Tensor | float) -> Tensor:
        threshold = _as_threshold(r, anchor, threshold)
        d = (r - anchor) / (1 + threshold)
        return torch.where(d == 0, anchor, anchor + d)

    def penalty(self, w: Tensor, anchor: Tensor, weight: Tensor | float) -> Tensor:
        """sum weight/2 * (w - anchor)^2"""
        _as_threshold(w, anchor, weight, "w", "weight")
        return _weighted((w - anchor).square() / 2, weight)

    threshold = staticmethod(per_step_threshold)


@dataclass(frozen=True)
class ElasticNet:
    """penalty = threshold * (mix * |w - anchor| + (1 - mix)/2 * (w - anchor)^2), with 0 <= mix <= 1."""

    mix: float = 0.5

    def __post_init__(self) -> None:
        if not isinstance(self.mix, int | float) or not 0 <= self.mix <= 1:
            raise ValueError(f"ElasticNet: mix is {self.mix!r}, it must lie in [0, 1] (1 is L1, 0 is L2)")

    def __call__(self, r: Tensor, anchor: Tensor, threshold: Tensor | float) -> Tensor:
        threshold = _as_threshold(r, anchor, threshold)
        # 0 * inf is NaN, so each half is scaled only where it counts.
        bound = threshold * self.mix if self.mix else torch.zeros_like(threshold)
        shrink = 1 + threshold * (1 - self.mix) if self.mix < 1 else torch.ones_like(threshold)
        d = r - anchor
        moves = (d.abs() > bound) & (threshold < float("inf"))
        return torch.where(moves, anchor + (d - torch.copysign(bound, d)) / shrink, anchor)

    def penalty(self, w: Tensor, anchor: Tensor, weight: Tensor | float) -> Tensor:
        """sum weight * (mix * |w - anchor| + (1 - mix)/2 * (w - anchor)^2)"""
        _as_threshold(w, anchor, weight, "w", "weight")
        d = w - anchor
        return _weighted(self.mix * d.abs() + (1 - self.mix) / 2 * d.square(), weight)

    threshold = staticmethod(per_step_threshold)


@dataclass(frozen=True)
class GroupL1:
    """penalty = sum over groups of |threshold_g|_2 * |(w - anchor)_g|_2: a whole row or filter moves, or none of it.

    Groups run along ``dim``: with 0 a group is everything that feeds one output unit (a row of a Linear, a filter
    of a convolution). In a vector, whatever ``dim``, each entry is its own group. With equal thresholds t the weight
    of a group of n is t * sqrt(n), the usual choice.
    """

    dim: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.dim, bool) or not isinstance(self.dim, int):
            raise TypeError(f"GroupL1: dim is {self.dim!r}, it must be a whole number: the dimension groups run along")

    def __call__(self, r: Tensor, anchor: Tensor, threshold: Tensor | float) -> Tensor:
        threshold = _as_threshold(r, anchor, threshold).expand_as(r)
        d = r - anchor
        size, bound = self._lengths(d), self._lengths(threshold)
        held = size <= bound
        scale = 1 - torch.where(held, torch.ones_like(size), bound / torch.where(held, torch.ones_like(size), size))
        return torch.where(held, anchor, anchor + d * scale)

    def penalty(self, w: Tensor, anchor: Tensor, weight: Tensor | float) -> Tensor:
        """sum over groups of |weight_g|_2 * |(w - anchor)_g|_2"""
        weight = _as_threshold(w, anchor, weight, "w", "weight").expand_as(w)
        return _weighted(self._lengths(w - anchor), self._lengths(weight))

    def _lengths(self, x: Tensor) -> Tensor:
        """The Euclidean norm of each group."""
        if x.dim() < 2:
            return x.abs()
        if not -x.dim() <= self.dim < x.dim():
            raise ValueError(f"GroupL1: dim is {self.dim}, but a parameter has shape {tuple(x.shape)}")
        return _norm(x, [i for i in range(x.dim()) if i != self.dim % x.dim()])

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
        threshold = _as_threshold(r, anchor, threshold)
        inside = torch.minimum(torch.maximum(r, anchor - threshold), anchor + threshold)
        return torch.where((r == anchor) | (threshold == 0), anchor, inside)

    def penalty(self, w: Tensor, anchor: Tensor, weight: Tensor | float) -> Tensor:
        """0 inside the box of half width ``weight``, infinite outside"""
        _as_threshold(w, anchor, weight, "w", "weight")
        outside = bool(((w - anchor).abs() > weight).any())
        return torch.full((), math.inf if outside else 0.0, dtype=w.dtype, device=w.device)

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


@dataclass(frozen=True)
class Penalty:
    """The penalty of a step, strength * penalty(w - anchor), with the step size of its prox."""

    prox: Prox
    gamma: float  # the step size: lr, or the sum of several
    strength: float
    damping: float = 0.0  # added to the importance

    @property
    def mix(self) -> float | None:
        """Share of soft threshold in the penalty; None where the prox is not of the L1/L2 family."""
        if isinstance(self.prox, ElasticNet):
            return self.prox.mix
        return 1.0 if isinstance(self.prox, L1) else 0.0 if isinstance(self.prox, L2) else None

    def threshold(self, importance: Tensor) -> Tensor:
        """What the prox takes as its threshold: gamma * strength * importance, unless the prox has its own rule."""
        return self._scaled(self.gamma, importance)

    def __call__(self, r: Tensor, anchor: Tensor, importance: Tensor) -> Tensor:
        """z: the proximal map of gamma * strength * penalty, taken at r."""
        return self.prox(r, anchor, self.threshold(importance))

    def value(self, w: Tensor, anchor: Tensor, importance: Tensor) -> float:
        """strength * penalty at w; NaN for a prox without ``penalty``."""
        penalty: Callable[[Tensor, Tensor, Tensor], Tensor] | None = getattr(self.prox, "penalty", None)
        return math.nan if penalty is None else float(penalty(w, anchor, self._scaled(1.0, importance)))

    def _scaled(self, gamma: float, importance: Tensor) -> Tensor:
        scale: Callable[[float, float, Tensor], Tensor] = getattr(self.prox, "threshold", per_step_threshold)
        return scale(gamma, self.strength, importance + self.damping)


def check_on_weights(prox: Prox, weights: Mapping[str, tuple[Tensor, Tensor]]) -> None:
    """Try a prox on every (weight, importance) before training relies on it; raise for the first where it fails."""
    penalty = Penalty(prox, 1.0, 1.0)
    if penalty.mix is not None:
        return
    for name, (w, importance) in weights.items():
        wide = w.to(importance.dtype)
        try:
            out = penalty(wide, wide, importance)
        except Exception as reason:
            raise ValueError(f"prox={prox!r} does not work on parameter {name!r}: {reason}") from reason
        if not isinstance(out, Tensor) or out.shape != w.shape or not bool(torch.isfinite(out).all()):
            found = f"shape {tuple(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
            raise ValueError(
                f"prox={prox!r} must return finite values in the shape of its input; for parameter {name!r} of "
                f"shape {tuple(w.shape)} it returned {found}"
            )


def check_on_directions(prox: Prox) -> None:
    """Refuse a prox that works only on single weights when directions are protected."""
    if Penalty(prox, 1.0, 1.0).mix is None:
        raise ValueError(
            f"prox={prox!r} works only on single weights, but drcl.Kronecker protects directions; use prox='l1', "
            "'l2' or 'elastic' with it, or importance=drcl.Fisher()"
        )


def resolve(prox: str | Prox) -> Prox:
    """The prox of this name, or the caller's own callable unchanged."""
    if callable(prox):
        return prox
    if not isinstance(prox, str) or prox not in NAMED:
        raise ValueError(f"prox={prox!r} is unknown; use one of {', '.join(map(repr, NAMED))} or a callable")
    return NAMED[prox]()
