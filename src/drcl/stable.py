"""`stable=0.8`: choose the strength so that this share of the protected weights stays exactly at the anchor.

A weight is held by a step iff |r - a| <= gamma * strength * F, so the strength that holds exactly a share q of them is
the q-quantile of |r - a| / (gamma * F). It is read off a fixed random sample of coordinates on the first batches, and
followed slowly for the rest of the task, because gradients shrink while a task is learned: a strength that is right on
the first batches would hold far more at the end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from drcl.kernels import Rule, Weight, proposal
from drcl.rotated import Proposal

SAMPLE = 20_000  # coordinates of a group that are watched
EARLY = 20  # steps over which the first estimate is a plain mean
SMOOTHING = 0.1  # weight of a new observation after that
FLOOR = 1e-6  # added to a mean-one importance: weights the earlier tasks never used can be held too


def choose(
    group: dict[str, Any], weights: list[Weight], rule: Rule, protected: int, layers: Sequence[Proposal] = ()
) -> float:
    """The strength for this step. `protected` counts the group's protected weights, those without gradient too.

    Of `layers`, held in an eigenbasis, it is directions that are held; those left out there all at once or never.
    """
    steps = group.setdefault("stable_steps", 0)
    bases = [layer.layer.basis for layer in layers]
    always = sum(b.left_out for b in bases if b.rest is None)
    active = sum(w.y.numel() for w in weights) + sum(b.directions + b.left_out for b in bases) - always
    if not active or not rule.gamma:  # nothing can move, and nothing can be learned about the strength
        return float(group["chosen_strength"] or 0.0)
    if steps < EARLY or steps % 5 == 0:
        # Weights without a gradient do not move, so the others must make up the whole share of movers.
        share = 1 - ((1 - group["stable"]) * protected - always) / active
        ratios = [*_ratios(weights, rule, active)]
        for p, b in zip(layers, bases):
            ratios.append(_gather(p.ratios(rule), _picks(b.directions, active, p.weight.y)))
            if b.left_out and (whole := p.rest_ratio(rule)) is not None:
                ratios.append(torch.full_like(_picks(b.left_out, active, p.weight.y), whole, dtype=ratios[-1].dtype))
        observed = max(float(torch.quantile(torch.cat(ratios), min(max(share, 0.0), 1.0))), 1e-12)
        old = group["chosen_strength"] if steps else None
        blend = max(1 / (steps + 1), SMOOTHING)
        log = math.log(observed) if old is None else (1 - blend) * math.log(old) + blend * math.log(observed)
        group["chosen_strength"] = math.exp(log)
    group["stable_steps"] = steps + 1
    return float(group["chosen_strength"])


def _picks(n: int, active: int, like: Tensor) -> Tensor:
    """Evenly spaced with a stride that is coprime to usual row lengths: a fixed sample without an index to store."""
    picks = min(n, max(1, round(SAMPLE * n / active)))
    if picks == n:
        return torch.arange(n, device=like.device)
    return (torch.arange(picks, device=like.device) * n // picks + 7919 * torch.arange(picks, device=like.device)) % n


def _ratios(weights: list[Weight], rule: Rule, active: int) -> Iterator[Tensor]:
    """|r - a| / (gamma * F) at the sampled coordinates: the strength that would just hold each of them."""
    mix = rule.mix or 1.0
    for w in weights:
        at = _picks(w.y.numel(), active, w.y)
        y, g, a, f = (_gather(t, at) for t in (w.y, w.g, w.anchor, w.importance))
        buffer = None if w.buffer is None else _gather(w.buffer, at)
        s = proposal(y, g, buffer, w.first, rule)
        r = y - 2 * s if rule.reflect else y - s
        yield (r - a).abs() / ((f + rule.damping) * (rule.gamma * mix))


def _gather(t: Tensor, at: Tensor) -> Tensor:
    flat = t.detach().reshape(-1)[at]
    return flat.float() if flat.dtype in (torch.float16, torch.bfloat16) else flat
