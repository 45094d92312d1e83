"""The stability half of a step: the weights of a group, what they propose, and the proximal map about the anchor."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from drcl.splitting import directions, held_share, kernels
from drcl.splitting.kernels import Rule, Weight

if TYPE_CHECKING:
    from drcl.optimizer import DRCL


def weight(optimizer: DRCL, p: Tensor, g: Tensor) -> Weight:
    """A protected parameter with its anchor, and `g` as what is proposed."""
    state = optimizer.state[p]
    return Weight(p, g, state["anchor"], state["importance"], state.get("z"))


def weights_with_gradients(optimizer: DRCL, group: dict[str, Any], held: list[Tensor]) -> list[Weight]:
    """Protected parameters whose SGD step and negotiation are one pass over memory."""
    weights = []
    for p in held:
        assert p.grad is not None
        made = weight(optimizer, p, p.grad)
        if group["momentum"]:
            state = optimizer.state[p]
            made.first = "momentum_buffer" not in state
            if made.first:
                state["momentum_buffer"] = torch.zeros_like(p)
            made.buffer = state["momentum_buffer"]
        weights.append(made)
    return weights


def rule(optimizer: DRCL, group: dict[str, Any], gamma: float) -> Rule:
    """The options of a group as the kernels take them."""
    return Rule(
        lr=float(group["lr"]),
        gamma=float(gamma),
        strength=float(group["strength"]),
        prox=optimizer.solver.prox,
        momentum=float(group["momentum"]),
        dampening=float(group["dampening"]),
        weight_decay=float(group["weight_decay"]),
        nesterov=bool(group["nesterov"]),
        maximize=bool(group["maximize"]),
        reflect=optimizer.solver.splitting != "forward-backward",
        damping=float(group["damping"]),
    )


def negotiate(optimizer: DRCL, group: dict[str, Any], weights: list[Weight], rule: Rule) -> None:
    """z and the next y of these weights: single ones by the kernels, layers with an eigenbasis along its directions."""
    if not weights:
        return
    layers, weights = directions.split(optimizer._layers, weights)
    if group["stable"] is not None:
        rule = dataclasses.replace(rule, damping=max(rule.damping, held_share.FLOOR))
    for layer in layers:
        directions.propose(layer, rule, rotate=group["stable"] is not None or not math.isinf(rule.strength))
    if group["stable"] is not None:
        protected = sum(p.numel() for p in group["params"] if optimizer.holds(group, p))
        rule = dataclasses.replace(rule, strength=held_share.choose(group, weights, rule, protected, layers))
    kernels.negotiate(weights, rule, optimizer.solver.backend)
    for layer in layers:
        directions.settle(layer, rule)
