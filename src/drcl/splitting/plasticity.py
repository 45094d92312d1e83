"""The plasticity half of a step: how x comes about. By SGD in one pass with the negotiation, by several steps of SGD or
of a wrapped optimizer, or by solving for the proximal map of the loss."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim.sgd import sgd

from drcl.splitting.checks import check_step
from drcl.splitting.directions import Layer
from drcl.splitting.kernels import Step, Weight
from drcl.splitting.stability import negotiate, penalty_of

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
    if not lbfgs:  # which looks at no gradient but those of its own evaluations
        check_step(optimizer)
    if optimizer.inner is None and optimizer.solver.plasticity_steps == 1:
        for group in optimizer.param_groups:
            plain, held = _divided(optimizer, group)
            _sgd(optimizer, group, plain)
            step = _step(optimizer, group, group["lr"], **_numbers(group))
            negotiate(optimizer, group, step, _with_gradients(optimizer, group, held))
        return loss
    _begin(optimizer, every=lbfgs)
    if optimizer.inner is None:
        for group in optimizer.param_groups:
            for params in _divided(optimizer, group):
                _sgd(optimizer, group, params)
    elif lbfgs and closure is not None:
        loss = optimizer.inner.step(_checked(optimizer, closure))
    else:
        with _put_back(optimizer.inner, optimizer):
            optimizer.inner.step()
    progress = optimizer.progress
    progress.steps_in_proposal += 1
    progress.gammas = [gamma + float(g["lr"]) for gamma, g in zip(progress.gammas, optimizer.param_groups)]
    if progress.steps_in_proposal >= optimizer.solver.plasticity_steps:
        finish(optimizer)
    return loss


@contextlib.contextmanager
def _put_back(inner: torch.optim.Optimizer, optimizer: DRCL) -> Iterator[None]:
    """torch's optimizers set up the state of some parameters before they refuse the gradient of another."""
    kept = {p: dict(state) for p, state in inner.state.items()}
    try:
        yield
    except BaseException:
        inner.state.clear()
        inner.state.update(kept)
        if optimizer.progress.steps_in_proposal == 0:
            for state in optimizer.state.values():
                state.pop("start", None)
        raise


def _step(optimizer: DRCL, group: dict[str, Any], gamma: float, **sgd: Any) -> Step:
    """The numbers of a group's step; without those of SGD for a proposal that is finished."""
    penalty = penalty_of(optimizer, group, gamma)
    return Step(penalty, reflect=optimizer.solver.splitting != "forward-backward", **sgd)


def _numbers(group: dict[str, Any]) -> dict[str, Any]:
    """SGD's options as plain numbers; a learning rate may be a tensor."""
    return {key: (bool if key in ("nesterov", "maximize") else float)(group[key]) for key in SGD}


def _weight(optimizer: DRCL, p: Tensor, g: Tensor) -> Weight:
    """A protected parameter with its anchor, and `g` as what is proposed."""
    state = optimizer.state[p]
    return Weight(p, g, state["anchor"], state["importance"], state.get("z"))


def _with_gradients(optimizer: DRCL, group: dict[str, Any], held: list[Tensor]) -> list[Weight]:
    """Protected parameters whose SGD step and negotiation are one pass over memory."""
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
    """Remember y where a new proposal starts; a parameter without gradient has no part in it."""
    fresh = optimizer.progress.steps_in_proposal == 0
    if fresh:
        optimizer.progress.gammas = [0.0] * len(optimizer.param_groups)
    for p, state in optimizer.protected():
        if every or p.grad is not None:
            if fresh or "start" not in state:
                state["start"] = p.clone()
        elif fresh:
            state.pop("start", None)


def finish(optimizer: DRCL) -> None:
    """Negotiate the proposal as it stands: the model goes back to y, and y - x takes the place of gamma * gradient."""
    for group, gamma in zip(optimizer.param_groups, optimizer.progress.gammas):
        arrived = _arrived(optimizer, group)
        at_x = {p for _, params in arrived for p in params}
        weights = []
        for p in group["params"]:
            start = optimizer.state.get(p, {}).pop("start", None)
            if start is not None and p not in at_x and optimizer.holds(group, p):
                weights.append(_weight(optimizer, p, start - p))
                p.copy_(start)
        negotiate(optimizer, group, _step(optimizer, group, gamma), weights, arrived)
    optimizer.progress.steps_in_proposal = 0


def _arrived(optimizer: DRCL, group: dict[str, Any]) -> list[tuple[Layer, list[Tensor]]]:
    """Layers with an eigenbasis, and what moved of them: without reflection they go from x to z, without y - x."""
    if optimizer.solver.splitting != "forward-backward":
        return []
    found = []
    for p in group["params"]:
        layer = optimizer.progress.layers.get(p)
        if layer is not None and optimizer.holds(group, p) and "start" in optimizer.state[p]:
            bias = layer.bias
            moved = [p] if bias is None or "start" not in optimizer.state[bias] else [p, bias]
            found.append((layer, moved))
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
        **{key: group[key] for key in SGD},
    )
    if momentum:
        for p, buffer in zip(chosen, buffers):
            optimizer.state[p]["momentum_buffer"] = buffer


# -- what is refused -----------------------------------------------------------------------------------------------


def _checked(optimizer: DRCL, closure: Closure) -> Closure:
    def evaluate() -> Any:
        with torch.enable_grad():
            loss = closure()
        check_step(optimizer)
        return loss

    return evaluate
