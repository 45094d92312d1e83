"""The stability half of a step: what becomes of a proposal. The proximal map about the anchor, then consensus.

Single weights are handed to the kernels, layers with an eigenbasis are settled along its directions. Where a share of
weights to hold is given in place of a strength, the strength is chosen here, from the proposal at hand.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from drcl.directions.coordinates import Coordinates
from drcl.prox import Penalty
from drcl.splitting import directions, held_share, kernels
from drcl.splitting.directions import Layer, LayerStep, Part
from drcl.splitting.kernels import Step, Weight

if TYPE_CHECKING:
    from drcl.optimizer import DRCL


def penalty_of(optimizer: DRCL, group: dict[str, Any], gamma: float) -> Penalty:
    """The group's penalty. With a share to hold the strength is still to be chosen."""
    damping = float(group["damping"])
    if group["stable"] is not None:
        damping = max(damping, held_share.FLOOR)
    return Penalty(optimizer.solver.prox, float(gamma), float(group["strength"]), damping)


def negotiate(
    optimizer: DRCL,
    group: dict[str, Any],
    step: Step,
    weights: Sequence[Weight],
    arrived: Sequence[tuple[Layer, list[Tensor]]] = (),
) -> None:
    """z and the next y of these weights.

    `arrived` are layers whose parameters hold x already: without reflection there is nothing else to know.
    """
    rotate = group["stable"] is not None or not math.isinf(step.penalty.strength)
    found, single = directions.split(optimizer.progress.layers, weights)
    layers = []
    for members in found:
        basis = optimizer.progress.layers[members[0].y].basis
        wide = basis.eigenvalues.dtype
        layers.append(LayerStep(basis, [Part.proposed(w, step, wide) for w in members], rotate))
    for held, params in arrived:
        wide = held.basis.eigenvalues.dtype
        parts = [Part.finished(p, optimizer.state[p]["anchor"], wide) for p in params]
        layers.append(LayerStep(held.basis, parts, rotate))
    if not single and not layers:
        return
    if group["stable"] is not None:
        protected = sum(p.numel() for p in group["params"] if optimizer.holds(group, p))
        strength = held_share.choose(group, single, step, protected, layers)
        step = dataclasses.replace(step, penalty=dataclasses.replace(step.penalty, strength=strength))
    kernels.take(single, step, optimizer.solver.backend)
    for layer in layers:
        layer.settle(step)


@torch.no_grad()
def penalty(optimizer: DRCL) -> float:
    """strength * penalty of the weights the model holds, over all groups."""
    total = 0.0
    for group, strength in zip(optimizer.param_groups, optimizer.strengths):
        term = dataclasses.replace(penalty_of(optimizer, group, 1.0), strength=strength)
        held = [p for p in group["params"] if optimizer.holds(group, p)]
        layers = {p: optimizer.progress.layers[p] for p in held if p in optimizer.progress.layers}
        inside = {*layers, *(layer.bias for layer in layers.values() if layer.bias is not None)}
        for p in held:
            state = optimizer.state[p]
            anchor, wide = state["anchor"], state["importance"].dtype
            if p in layers:
                basis, bias = layers[p].basis, layers[p].bias
                more = None if bias is None else (bias.to(wide), optimizer.state[bias]["anchor"].to(wide))
                drift = basis.difference((p.to(wide), anchor.to(wide)), more)
                total += Coordinates(basis, drift).penalty(term)
            elif p not in inside:
                total += term.value(p.to(wide), anchor.to(wide), state["importance"])
    return total
