"""The stability half of a step: the proximal map of a proposal about the anchor, then consensus.

Single weights go to the kernels; layers with an eigenbasis are negotiated along its directions. With ``stable``, a
share of weights to hold, the strength is chosen here from the current proposal.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from drcl import sharding
from drcl.directions.coordinates import Coordinates
from drcl.importance.base import importance_dtype
from drcl.options import AUTO
from drcl.prox import Penalty
from drcl.splitting import auto, directions, held_share, kernels
from drcl.splitting.directions import Layer, LayerStep, Part
from drcl.splitting.kernels import Step, Weight

if TYPE_CHECKING:
    from drcl.optimizer import DRCL


def penalty_of(optimizer: DRCL, group: dict[str, Any], gamma: float) -> Penalty:
    """The group's penalty. With ``stable`` its strength is chosen later."""
    damping = float(group["damping"])
    if group["stable"] is not None:
        damping = max(damping, held_share.FLOOR)
    strength = auto.strength(optimizer, group) if group["strength"] == AUTO else float(group["strength"])
    return Penalty(optimizer.solver.prox, float(gamma), strength, damping)


def negotiate(
    optimizer: DRCL,
    group: dict[str, Any],
    step: Step,
    weights: Sequence[Weight],
    arrived: Sequence[tuple[Layer, list[Tensor]]] = (),
    starts: Mapping[Tensor, Tensor] | None = None,
    layers: Mapping[Tensor, Layer] | None = None,
) -> None:
    """z and the next y of these weights.

    `arrived` are layers whose parameters already hold x; without reflection nothing else is needed. `starts` are the y
    they come from, for an observer. `layers` are all layers with directions, by their weight, if the proposal has step
    sizes of its own.
    """
    rotate = group["stable"] is not None or not math.isinf(step.penalty.strength)
    known = optimizer.progress.layers if layers is None else layers
    found, single = directions.split(known, weights)
    if not single and not found and not arrived:
        return
    observer = optimizer.progress.observer
    watched = observer is not None and observer.armed

    def proposals() -> Iterator[LayerStep]:
        for members in found:
            wide = importance_dtype(members[0].y)
            basis = known[members[0].y].basis.at_work(wide)
            yield LayerStep(basis, [Part.proposed(w, step, wide) for w in members], rotate)
        for held, params in arrived:
            wide = importance_dtype(params[0])
            parts = [Part.finished(p, optimizer.state[p]["anchor"], wide) for p in params]
            yield LayerStep(held.basis.at_work(wide), parts, rotate)

    # One at a time unless all are needed at once, because a gathered layer takes its full size in memory.
    steps: Iterable[LayerStep] = list(proposals()) if watched or group["stable"] is not None else proposals()
    if observer is not None and watched:
        before = observer.offered(weights, step, [p for _, params in arrived for p in params], starts or {})
    if group["stable"] is not None:
        protected = sum(p.numel() for p in group["params"] if optimizer.holds(group, p))
        strength = held_share.choose(group, single, step, protected, list(steps))
        step = dataclasses.replace(step, penalty=dataclasses.replace(step.penalty, strength=strength))
    kernels.take(single, step, optimizer.solver.backend)
    for layer in steps:
        layer.settle(step)
    if observer is not None and watched:
        observer.settled(group, before)


@torch.no_grad()
def penalty(optimizer: DRCL) -> float:
    """strength * penalty of the weights the model holds, over all groups; without products of adapters."""
    total = 0.0
    for group, strength in zip(optimizer.param_groups, optimizer.strengths):
        term = dataclasses.replace(penalty_of(optimizer, group, 1.0), strength=strength)
        products = {p for adapter in optimizer.progress.adapters.values() for p in (adapter.a, adapter.b)}
        held = [p for p in group["params"] if optimizer.holds(group, p) and p not in products]
        layers = {p: optimizer.progress.layers[p] for p in held if p in optimizer.progress.layers}
        inside = {*layers, *(layer.bias for layer in layers.values() if layer.bias is not None)}
        for p in held:
            state = optimizer.state[p]
            wide = importance_dtype(p)
            weight, anchor = (sharding.full(t).to(wide) for t in (p, state["anchor"]))
            if p in layers:
                basis, bias = layers[p].basis.at_work(wide), layers[p].bias
                more = None
                if bias is not None:
                    more = sharding.full(bias).to(wide), sharding.full(optimizer.state[bias]["anchor"]).to(wide)
                total += Coordinates(basis, basis.difference((weight, anchor), more)).penalty(term)
            elif p not in inside:
                total += term.value(weight, anchor, sharding.full(state["importance"]).to(wide))
    return total
