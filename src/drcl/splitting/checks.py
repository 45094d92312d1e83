"""Everything a step can refuse, checked before it changes anything.

During long training, schedulers write into groups, heads grow and gradients overflow. So this module checks everything
that reaches the arithmetic, above all the pointers passed to C: shapes, types, devices, freed memory, numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from drcl import options, ranks, sharding
from drcl.splitting import kernels, lowrank, native

if TYPE_CHECKING:
    from drcl.optimizer import DRCL

# State with the parameter's shape and device; all but the importance also have its type.
TENSORS = ("anchor", "importance", "z", "start", "gradients", "momentum_buffer")


def check_step(optimizer: DRCL) -> None:
    """Raise, naming the group or parameter and the remedy, unless the step can be taken."""
    owners = []
    for index, group in enumerate(optimizer.param_groups):
        try:  # a scheduler or the user may have put anything into the group
            options.group(group, optimizer.solver, strict=optimizer.inner is None)
        except (TypeError, ValueError) as reason:
            raise type(reason)(f"group {index}: {reason}; no weight was changed") from None
        if optimizer.inner is not None:
            _check_inner(optimizer.inner, index, group)
        for p in group["params"]:
            if type(p) not in native.PLAIN:
                _check_plain(optimizer, p)
            g = p.grad
            if g is not None:
                _check_gradient(optimizer, group, p, g)
                owners.append(p)
            state = optimizer.state.get(p)
            if state:
                check_state(optimizer, p, state)
    _check_layers(optimizer)
    lowrank.check(optimizer, lowrank.factors(optimizer))
    if not optimizer.solver.check_finite or not owners:
        return
    bad = _first_bad(optimizer, owners)
    if bad >= 0:
        half = owners[bad].dtype == torch.float16
        remedy = "scale the loss with torch.amp.GradScaler" if half else "lower lr, clip gradients or skip this batch"
        raise FloatingPointError(
            f"the gradient of {optimizer.name_of(owners[bad])!r} holds NaN or infinite values; no weight was changed. "
            f"To continue, {remedy}."
        )


def _first_bad(optimizer: DRCL, owners: list[Tensor]) -> int:
    """The first parameter whose gradient is not finite, or -1: the same on all processes that share parameters."""
    gradients = [sharding.local(p.grad) for p in owners if p.grad is not None]
    bad = kernels.first_non_finite(gradients, optimizer.solver.backend)
    spread: list[Any] = [p for p in owners if sharding.is_sharded(p)]
    for mesh in dict.fromkeys(p.device_mesh for p in spread):
        bad = ranks.largest(bad, mesh, spread[0].device)
    return bad


# Options that need a tensor per parameter, which wrapped optimizers make only in their first step.
SLOTS = {"momentum": "momentum_buffer", "centered": "grad_avg", "amsgrad": "max_exp_avg_sq"}


def _check_inner(inner: torch.optim.Optimizer, index: int, group: dict[str, Any]) -> None:
    """Refuse an option that was switched on too late: the wrapped optimizer would fail after other groups had moved."""
    if isinstance(inner, torch.optim.SGD):  # SGD makes its buffers when it needs them
        return
    for key, slot in SLOTS.items():
        if group.get(key) and any(inner.state.get(p) and slot not in inner.state[p] for p in group["params"]):
            name = type(inner).__name__
            raise ValueError(
                f"group {index}: {key}={group[key]!r} was switched on after {name} had begun without it; switch it "
                f"off, or make a new {name} and wrap that; no weight was changed"
            )


def _check_gradient(optimizer: DRCL, group: dict[str, Any], p: Tensor, g: Tensor) -> None:
    if g.is_sparse:
        if optimizer.holds(group, p):
            raise ValueError(
                f"parameter {optimizer.name_of(p)!r} is protected but has a sparse gradient; use sparse=False in "
                "its module, or put it in a group with free=True"
            )
    elif g.shape != p.shape or g.dtype is not p.dtype or g.device != p.device or sharding.apart(g, p) or _gone(g):
        raise ValueError(
            f"the gradient of {optimizer.name_of(p)!r} is {_facts(g)}, but the parameter is {_facts(p)}; the parameter "
            "was replaced after backward(): call zero_grad() and backward() again"
        )


def check_parameters(optimizer: DRCL) -> None:
    """The same at the end of a task: raise unless the state of every parameter still fits it."""
    check_plain(optimizer)
    for p, state in optimizer.protected():
        check_state(optimizer, p, state)
    _check_layers(optimizer)


def _check_layers(optimizer: DRCL) -> None:
    """A layer's weight and bias are held together: if one grew, the other must too."""
    for p, layer in optimizer.progress.layers.items():
        bias = layer.bias
        if bias is not None and len(bias) != len(p):
            raise ValueError(
                f"parameter {optimizer.name_of(p)!r} has {len(p)} rows now, {optimizer.name_of(bias)!r} {len(bias)}: "
                "call opt.grow(old, new) for both; no weight was changed"
            )


def check_plain(optimizer: DRCL) -> None:
    """Raise if a parameter is not an ordinary tensor."""
    for group in optimizer.param_groups:
        for p in group["params"]:
            _check_plain(optimizer, p)


def _check_plain(optimizer: DRCL, p: Tensor) -> None:
    """A quantised tensor's memory does not match its shape; shards of FSDP2 and other subclasses are fine."""
    reason = sharding.refusal(p)
    if reason is not None:
        raise TypeError(f"parameter {optimizer.name_of(p)!r} {reason}")


def check_state(optimizer: DRCL, p: Tensor, state: dict[str, Any]) -> None:
    """Raise unless the state of a parameter still fits it."""
    shape, device = p.shape, p.device
    for key in TENSORS:
        t = state.get(key)
        if t is None:
            continue
        other = t.shape != shape or t.device != device or (t.dtype is not p.dtype and key != "importance")
        if other or sharding.apart(t, p) or _gone(t):
            raise ValueError(
                f"parameter {optimizer.name_of(p)!r} is {_facts(p)} now, but its {key.replace('_', ' ')} is "
                f"{_facts(t)}: the parameter was changed. If it gained rows, call opt.grow(old, new); otherwise put it "
                "back, or make a new optimizer. No weight was changed"
            )


def _gone(t: Tensor) -> bool:
    """Whether the memory of a tensor was freed, as sharding tools do."""
    t = sharding.local(t)
    return t.data_ptr() == 0 and t.numel() > 0 and not t.is_meta


def _facts(t: Tensor) -> str:
    if _gone(t):
        return f"of shape {tuple(t.shape)} without memory"
    spread: Any = t
    where = f" as {spread.placements}" if sharding.is_sharded(t) else ""
    return f"{str(t.dtype).removeprefix('torch.')} of shape {tuple(t.shape)} on {t.device}{where}"
