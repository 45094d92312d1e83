"""The plasticity half of a step: how x comes about. By SGD in one pass with the negotiation, by several steps of SGD or
of a wrapped optimizer, or by solving for the proximal map of the loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim.sgd import sgd

from drcl.splitting import kernels, stability

if TYPE_CHECKING:
    from drcl.optimizer import DRCL

Closure = Callable[[], Any]

# A finished proposal y - x stands where gamma * gradient stood: nothing of SGD is left to do.
DONE = dict(lr=1.0, momentum=0.0, dampening=0.0, nesterov=False, weight_decay=0.0, maximize=False)


def explicit(optimizer: DRCL, closure: Closure | None) -> Any:
    """x = y - gamma * grad f(y), by SGD or by the wrapped optimizer."""
    loss = None
    lbfgs = isinstance(optimizer.inner, torch.optim.LBFGS)
    if closure is not None and not lbfgs:
        with torch.enable_grad():
            loss = closure()
    if not lbfgs:  # which looks at no gradient but those of its own evaluations
        check_gradients(optimizer)
    if optimizer.inner is None and optimizer.solver.plasticity_steps == 1:
        for group in optimizer.param_groups:
            plain, held = _divided(optimizer, group)
            _sgd(optimizer, group, plain)
            weights = stability.weights_with_gradients(optimizer, group, held)
            stability.negotiate(optimizer, group, weights, stability.rule(optimizer, group, group["lr"]))
        return loss
    _begin(optimizer, every=lbfgs)
    if optimizer.inner is None:
        for group in optimizer.param_groups:
            for params in _divided(optimizer, group):
                _sgd(optimizer, group, params)
    elif lbfgs and closure is not None:
        loss = optimizer.inner.step(_checked(optimizer, closure))
    else:
        optimizer.inner.step()
    progress = optimizer._progress
    progress["steps_in_proposal"] += 1
    progress["gammas"] = [gamma + float(g["lr"]) for gamma, g in zip(progress["gammas"], optimizer.param_groups)]
    if progress["steps_in_proposal"] >= optimizer.solver.plasticity_steps:
        finish(optimizer)
    return loss


def implicit(optimizer: DRCL, closure: Closure) -> Any:
    """x = argmin f(x) + |x - y|^2 / (2 gamma), by gradient steps from y; the first one is the explicit proposal."""
    loss, evaluate = None, _checked(optimizer, closure)
    everyone = [(g, p) for g in optimizer.param_groups for p in g["params"] if p.requires_grad]
    for _, p in everyone:
        optimizer.state[p]["start"] = p.clone()
    for k in range(optimizer.solver.inner_steps):
        loss = evaluate()
        for group, p in everyone:
            gamma, sign = float(group["lr"]), -1 if group["maximize"] else 1
            if p.grad is None or gamma == 0:
                continue
            pull = sign * p.grad + group["weight_decay"] * p
            if k == 0:
                p.sub_(pull, alpha=gamma)
            else:
                p.sub_(pull + (p - optimizer.state[p]["start"]) / gamma, alpha=gamma / 2)
    optimizer._progress["gammas"] = [float(g["lr"]) for g in optimizer.param_groups]
    finish(optimizer)
    return loss


# -- a proposal of several steps -----------------------------------------------------------------------------------


def _begin(optimizer: DRCL, every: bool) -> None:
    """Remember y where a new proposal starts; a parameter without gradient has no part in it."""
    fresh = optimizer._progress["steps_in_proposal"] == 0
    if fresh:
        optimizer._progress["gammas"] = [0.0] * len(optimizer.param_groups)
    for p, state in optimizer.protected():
        if every or p.grad is not None:
            if fresh or "start" not in state:
                state["start"] = p.clone()
        elif fresh:
            state.pop("start", None)


def finish(optimizer: DRCL) -> None:
    """Negotiate the proposal as it stands: the model goes back to y, and y - x takes the place of gamma * gradient."""
    for group, gamma in zip(optimizer.param_groups, optimizer._progress["gammas"]):
        weights, layers = [], _finished_layers(optimizer, group)
        for p in group["params"]:
            start = optimizer.state.get(p, {}).pop("start", None)
            if start is None or not optimizer.holds(group, p):
                continue
            if p in layers:
                made = stability.weight(optimizer, p, p)
                made.done = True
            else:
                made = stability.weight(optimizer, p, start - p)
                p.copy_(start)
            weights.append(made)
        stability.negotiate(optimizer, group, weights, stability.rule(optimizer, {**group, **DONE}, gamma))
    optimizer._progress["steps_in_proposal"] = 0


def _finished_layers(optimizer: DRCL, group: dict[str, Any]) -> set[Tensor]:
    """Parameters of layers with an eigenbasis: without reflection they go from x to z at once, without y - x."""
    found: set[Tensor] = set()
    if optimizer.solver.splitting != "forward-backward":
        return found
    for p in group["params"]:
        layer = optimizer._layers.get(p)
        if layer is not None and "start" in optimizer.state[p]:
            found |= {p} if layer.bias is None or "start" not in optimizer.state[layer.bias] else {p, layer.bias}
    return found


# -- plain steps ---------------------------------------------------------------------------------------------------


def _divided(optimizer: DRCL, group: dict[str, Any]) -> tuple[list[Tensor], list[Tensor]]:
    """The parameters with a gradient: those nothing protects, and those that are held."""
    plain: list[Tensor] = []
    held: list[Tensor] = []
    for p in group["params"]:
        if p.grad is not None:
            (held if optimizer.holds(group, p) else plain).append(p)
    return plain, held


def _sgd(optimizer: DRCL, group: dict[str, Any], chosen: list[Tensor]) -> None:
    """Torch's own SGD on some parameters of a group."""
    gradients = [p.grad for p in chosen if p.grad is not None]
    if not gradients:
        return
    momentum = group["momentum"]
    buffers = [optimizer.state[p].get("momentum_buffer") if momentum else None for p in chosen]
    sgd(
        chosen,
        gradients,
        buffers,
        has_sparse_grad=any(g.is_sparse for g in gradients),
        foreach=None,
        fused=None,
        **{k: group[k] for k in ("weight_decay", "momentum", "lr", "dampening", "nesterov", "maximize")},
    )
    if momentum:
        for p, buffer in zip(chosen, buffers):
            optimizer.state[p]["momentum_buffer"] = buffer


# -- what is refused -----------------------------------------------------------------------------------------------


def _checked(optimizer: DRCL, closure: Closure) -> Closure:
    def evaluate() -> Any:
        with torch.enable_grad():
            loss = closure()
        check_gradients(optimizer)
        return loss

    return evaluate


def check_gradients(optimizer: DRCL) -> None:
    """Everything a step can refuse, before it changes anything."""
    owners = []
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p.grad is None:
                continue
            if p.grad.is_sparse and optimizer.holds(group, p):
                raise ValueError(
                    f"parameter {optimizer.name_of(p)!r} is protected but has a sparse gradient; use sparse=False in "
                    "its module, or put it in a group with free=True"
                )
            owners.append(p)
    if not optimizer.solver.check_finite or not owners:
        return
    bad = kernels.first_non_finite([p.grad for p in owners], optimizer.solver.backend)
    if bad >= 0:
        half = owners[bad].dtype == torch.float16
        remedy = "scale the loss with torch.amp.GradScaler" if half else "lower lr, clip gradients or skip this batch"
        raise FloatingPointError(
            f"the gradient of {optimizer.name_of(owners[bad])!r} holds NaN or infinite values; no weight was changed. "
            f"To go on, {remedy}."
        )
