"""The plasticity half of a step, which computes x: by SGD in one pass with the negotiation, by several steps of SGD or
of a wrapped optimizer, or by solving for the proximal map of the loss."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim.sgd import sgd

from drcl import sharding
from drcl.importance.base import importance_dtype
from drcl.splitting import auto, lowrank, native
from drcl.splitting.checks import check_step
from drcl.splitting.directions import Layer
from drcl.splitting.kernels import Step, Weight
from drcl.splitting.stability import negotiate, penalty_of
from drcl.splitting.step_size import Sizes, measures, rate, told_by_groups

if TYPE_CHECKING:
    from drcl.optimizer import DRCL

Closure = Callable[[], Any]
SGD = ("lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize")


def explicit(optimizer: DRCL, closure: Closure | None) -> Any:
    """x = y - gamma * grad f(y), by SGD or by the wrapped optimizer."""
    loss = None
    lbfgs = isinstance(optimizer.inner, torch.optim.LBFGS)
    if closure is not None and not lbfgs:
        with torch.enable_grad():
            loss = closure()
    if not lbfgs:  # LBFGS uses only the gradients of its own evaluations
        check_step(optimizer)
        auto.watch(optimizer)
    if optimizer.inner is None and optimizer.solver.plasticity_steps == 1 and not optimizer.progress.adapters:
        for group in optimizer.param_groups:
            plain, held = _divided(optimizer, group)
            _sgd(optimizer, group, plain)
            step = _step(optimizer, group, rate(group), **_numbers(group))
            negotiate(optimizer, group, step, _with_gradients(optimizer, group, held))
        return loss
    gammas = optimizer.progress.gammas
    _begin(optimizer, every=lbfgs)
    if optimizer.inner is None:
        for group in optimizer.param_groups:
            for params in _divided(optimizer, group):
                _sgd(optimizer, group, params)
    elif lbfgs and closure is not None:
        loss = optimizer.inner.step(_checked(optimizer, closure))
    else:
        with _put_back(optimizer.inner, optimizer, gammas):
            optimizer.inner.step()
    if not optimizer.state:
        _seem_filled(optimizer)
    progress = optimizer.progress
    progress.steps_in_proposal += 1
    progress.gammas = [gamma + rate(g) for gamma, g in zip(progress.gammas, optimizer.param_groups)]
    if progress.steps_in_proposal >= optimizer.solver.plasticity_steps:
        finish(optimizer)
    return loss


def _seem_filled(optimizer: DRCL) -> None:
    """Give the optimizer some state: torch.distributed.checkpoint takes a step with one that has none."""
    for group in optimizer.param_groups:
        for p in group["params"]:
            if sharding.is_sharded(p):
                optimizer.state[p] = {}


@contextlib.contextmanager
def _put_back(inner: torch.optim.Optimizer, optimizer: DRCL, gammas: list[float]) -> Iterator[None]:
    """Restore the state after a failed step: torch's optimizers fill some state before they refuse a gradient."""
    kept = {p: dict(state) for p, state in inner.state.items()}
    try:
        yield
    except BaseException as reason:
        inner.state.clear()
        inner.state.update(kept)
        if optimizer.progress.steps_in_proposal == 0:
            optimizer.progress.gammas = gammas
            for state in optimizer.state.values():
                for key in ("start", "gradients"):
                    state.pop(key, None)
        if isinstance(reason, (LookupError, AttributeError, ZeroDivisionError, OverflowError)):
            name = type(inner).__name__
            raise RuntimeError(
                f"the wrapped {name} could not take its step ({type(reason).__name__}: {reason}). An option of its "
                "groups does not fit its state, such as a momentum that was 0 at the start: put the option back, or "
                f"make a new {name} and wrap that"
            ) from reason
        raise


def _step(optimizer: DRCL, group: dict[str, Any], gamma: float, **sgd: Any) -> Step:
    """The numbers of a group's step; a finished proposal does not need those of SGD."""
    penalty = penalty_of(optimizer, group, gamma)
    return Step(penalty, reflect=optimizer.solver.splitting != "forward-backward", **sgd)


def _numbers(group: dict[str, Any]) -> dict[str, Any]:
    """SGD's options as plain numbers; a learning rate may be a tensor."""
    return {key: (bool if key in ("nesterov", "maximize") else float)(group[key]) for key in SGD}


def _weight(optimizer: DRCL, p: Tensor, g: Tensor) -> Weight:
    """A protected parameter with its anchor and the proposal `g`."""
    state = optimizer.state[p]
    return Weight(p, g, state["anchor"], state["importance"], state.get("z"))


def _with_gradients(optimizer: DRCL, group: dict[str, Any], held: list[Tensor]) -> list[Weight]:
    """Protected parameters, for an SGD step and a negotiation in one pass over memory."""
    weights = []
    for p in held:
        assert p.grad is not None
        made = _weight(optimizer, p, p.grad)
        if group["momentum"]:
            state = optimizer.state[p]
            made.first = "momentum_buffer" not in state
            if made.first:
                state["momentum_buffer"] = torch.zeros_like(p)
            made.buffer = state["momentum_buffer"]
        weights.append(made)
    return weights


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
    optimizer.progress.gammas = [float(g["lr"]) for g in optimizer.param_groups]
    finish(optimizer)
    return loss


# -- a proposal of several steps -----------------------------------------------------------------------------------


def _begin(optimizer: DRCL, every: bool) -> None:
    """Remember y at the start of a proposal; a parameter without gradient takes no part in it."""
    fresh = optimizer.progress.steps_in_proposal == 0
    if fresh:
        optimizer.progress.gammas = [0.0] * len(optimizer.param_groups)
    for p, state in optimizer.protected():
        if every or p.grad is not None:
            if fresh or "start" not in state:
                state["start"] = p.clone()
                state.pop("gradients", None)
            if p.grad is not None and measures(optimizer, p):
                state["gradients"] = p.grad + state["gradients"] if "gradients" in state else p.grad.clone()
        elif fresh:
            state.pop("start", None)
            state.pop("gradients", None)


def finish(optimizer: DRCL) -> None:
    """Negotiate the current proposal: the model goes back to y, and y - x takes the place of gamma * gradient."""
    lowrank.settle(optimizer)
    for group, gamma in zip(optimizer.param_groups, optimizer.progress.gammas):
        step, sizes = _step(optimizer, group, gamma), None
        if not told_by_groups(optimizer):
            sizes = auto.sizes(optimizer, group, gamma, step.penalty.strength, step.penalty.damping)  # adds the damping
            step = dataclasses.replace(step, penalty=dataclasses.replace(step.penalty, damping=0.0))
        layers = _layers(optimizer, group, sizes)
        arrived = [] if step.reflect else [(layer, moved) for layer, moved in layers.values()]
        at_x = {p for _, moved in arrived for p in moved}
        weights = []
        for p in group["params"]:
            start = optimizer.state.get(p, {}).get("start")
            if start is not None and p not in at_x and optimizer.holds(group, p):
                weights.append(_weight(optimizer, p, start - p))
                if sizes is not None:
                    weights[-1].importance = sizes.weights(p, weights[-1].importance.to(importance_dtype(p)))
        starts = {p: optimizer.state[p]["start"] for p in at_x}
        for w in weights:
            w.y.copy_(optimizer.state[w.y]["start"])
        for p in group["params"]:
            for key in ("start", "gradients"):
                optimizer.state.get(p, {}).pop(key, None)
        negotiate(optimizer, group, step, weights, arrived, starts, {p: layer for p, (layer, _) in layers.items()})
    optimizer.progress.steps_in_proposal = 0


def _layers(optimizer: DRCL, group: dict[str, Any], sizes: Sizes | None) -> dict[Tensor, tuple[Layer, list[Tensor]]]:
    """Layers with an eigenbasis, in the step sizes of this proposal, each with its parts that moved."""
    found = {}
    for p in group["params"]:
        layer = optimizer.progress.layers.get(p)
        if layer is not None and optimizer.holds(group, p) and "start" in optimizer.state[p]:
            bias = layer.bias
            moved = [p] if bias is None or "start" not in optimizer.state[bias] else [p, bias]
            if sizes is not None:
                layer = dataclasses.replace(layer, basis=sizes.directions(layer.basis, moved))
            found[p] = layer, moved
    return found


# -- plain steps ---------------------------------------------------------------------------------------------------


def _divided(optimizer: DRCL, group: dict[str, Any]) -> tuple[list[Tensor], list[Tensor]]:
    """The parameters with a gradient: the unprotected ones, and the protected ones."""
    plain: list[Tensor] = []
    held: list[Tensor] = []
    for p in group["params"]:
        if p.grad is not None:
            (held if optimizer.holds(group, p) else plain).append(p)
    return plain, held


def _sgd(optimizer: DRCL, group: dict[str, Any], chosen: list[Tensor]) -> None:
    """Torch's own SGD on some parameters of a group."""
    momentum = group["momentum"]
    batches: dict[bool, list[Tensor]] = {}
    for p in chosen:
        batches.setdefault(_fuses(p, optimizer.state[p].get("momentum_buffer") if momentum else None), []).append(p)
    for fused, params in batches.items():
        gradients = [sharding.local(p.grad) for p in params if p.grad is not None]
        kept = [optimizer.state[p].get("momentum_buffer") if momentum else None for p in params]
        buffers = [None if t is None else sharding.local(t) for t in kept]
        sgd(
            [sharding.local(p) for p in params],
            gradients,
            buffers,
            has_sparse_grad=any(g.is_sparse for g in gradients),
            foreach=None,
            fused=fused or None,
            **{key: group[key] for key in SGD},
        )
        if momentum:
            for p, before, buffer in zip(params, kept, buffers):
                made = None if buffer is None else sharding.wrap(buffer, p)
                optimizer.state[p]["momentum_buffer"] = made if before is None else before


def _fuses(p: Tensor, buffer: Tensor | None) -> bool:
    """Whether torch's fused SGD, one pass over memory instead of three, gives the same bits: on a CPU it does, except
    for the last values of a tensor that does not fill whole vectors."""
    return p.numel() > 0 and p.numel() % 64 == 0 and native.usable(p, (p.grad, buffer))


# -- what is refused -----------------------------------------------------------------------------------------------


def _checked(optimizer: DRCL, closure: Closure) -> Closure:
    def evaluate() -> Any:
        with torch.enable_grad():
            loss = closure()
        check_step(optimizer)
        return loss

    return evaluate
