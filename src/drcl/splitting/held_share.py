"""`stable=0.8`: choose the strength so that this share of the protected weights stays exactly at the anchor.

A weight is held by a step iff |r - a| <= gamma * strength * F, so the strength that holds exactly a share q of them is
the q-quantile of |r - a| / (gamma * F). It is computed from a fixed random sample of coordinates at every step, because
gradients shrink while a task is learned: a strength that is right for the first batches would hold far more at the end,
and a smoothed one would lag behind. The last step alone decides which weights are held.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from drcl import sharding
from drcl.splitting.directions import LayerStep
from drcl.splitting.kernels import Step, Weight, displacement

SAMPLE = 5_000  # coordinates to sample per group: the standard error of the share is at most 0.7 points
FLOOR = 1e-6  # added to importance in units of its mean, so that weights unused by earlier tasks can be held too


def choose(
    group: dict[str, Any], weights: list[Weight], step: Step, protected: int, layers: Sequence[LayerStep] = ()
) -> float:
    """The strength for this step. `protected` counts the group's protected weights, including those without gradient.

    In `layers`, which have an eigenbasis, directions are held; those left out of it are held as whole rows.
    """
    bases = [layer.basis for layer in layers]
    active = sum(w.y.numel() for w in weights) + sum(b.directions + b.left_out for b in bases)
    if not active or not step.penalty.gamma:  # nothing moves, so any strength will do
        return float(group["chosen_strength"] or 0.0)
    # Weights without a gradient do not move, so all that may move are among the others.
    share = 1 - (1 - group["stable"]) * protected / active
    ratios = torch.cat([*_ratios(weights, step, active), *_directions(layers, step, active)])
    held = round(share * len(ratios))
    group["chosen_strength"] = float(ratios.kthvalue(min(held, len(ratios))).values) if held > 0 else 0.0
    return float(group["chosen_strength"])


def _picks(n: int, active: int) -> int:
    return n if active <= SAMPLE else math.ceil(SAMPLE * n / active)


def _ratios(weights: list[Weight], step: Step, active: int) -> list[Tensor]:
    """|r - a| / (gamma * F) at the sampled coordinates: the smallest strength that would hold each of them."""
    out = []
    penalty = step.penalty
    mix = penalty.mix or 1.0
    for of in weights:
        w = of.seen(sharding.local)
        n = w.y.numel()
        at = None if active <= SAMPLE or not n else _sample(n, _picks(n, active), w.y.device)
        y, g, a, f = (_gather(t, at) for t in (w.y, w.g, w.anchor, w.importance))
        buffer = None if w.buffer is None else _gather(w.buffer, at)
        s = displacement(y, g, buffer, w.first, step)
        r = y - 2 * s if step.reflect else y - s
        ratios = (r - a).abs() / ((f + penalty.damping) * (penalty.gamma * mix))
        out.append(sharding.joined(ratios, of.y))
    return out


def _directions(layers: Sequence[LayerStep], step: Step, active: int) -> list[Tensor]:
    """The same for the directions of layers, whose r - a is already computed."""
    out = []
    for p in layers:
        assert p.at is not None
        ratios, basis = p.at.ratios(step.penalty), p.basis
        # Every direction left out has the ratio of its row, column or tail.
        groups, positions, rows, columns = ratios.shape
        m, n = basis.size
        count = groups * positions * m * n
        picks = count if active <= SAMPLE else _picks(count, active)
        at = torch.arange(count, device=ratios.device) if picks == count else _sample(count, picks, ratios.device)
        group, row, column = at // (m * n), (at // n) % m, at % n
        out.append(ratios.flatten(0, 1)[group, row.clamp(max=rows - 1), column.clamp(max=columns - 1)])
    return out


@functools.lru_cache(maxsize=1024)
def _sample(n: int, picks: int, device: torch.device) -> Tensor:
    """Positions to sample; the same at every step and in every process."""
    return torch.randint(n, (picks,), generator=torch.Generator().manual_seed(0)).to(device)


def _gather(t: Tensor, at: Tensor | None) -> Tensor:
    flat = t.detach().reshape(-1)
    flat = flat.clone() if at is None else flat[at]
    return flat.float() if flat.dtype in (torch.float16, torch.bfloat16) else flat
