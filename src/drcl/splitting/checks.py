"""Everything a step can refuse, looked at before it changes anything.

Training code lives long: schedulers write into groups, heads grow, gradients overflow. What reaches the arithmetic, and
above all the pointers handed to C, has been checked here: shapes, types, devices, memory that is still there, numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from drcl import options
from drcl.splitting import kernels

if TYPE_CHECKING:
    from drcl.optimizer import DRCL

# Of a parameter's shape and device; all but the importance are of its type too.
TENSORS = ("anchor", "importance", "z", "start", "momentum_buffer")


def check_step(optimizer: DRCL) -> None:
    """Raise, naming the group or parameter and the remedy, unless the step can be taken."""
    owners = []
    for index, group in enumerate(optimizer.param_groups):
        try:  # a scheduler, or a hand, may have put anything into the group since it was made
            options.group(group, optimizer.solver, strict=optimizer.inner is None)
        except (TypeError, ValueError) as reason:
            raise type(reason)(f"group {index}: {reason}; no weight was changed") from None
        for p in group["params"]:
            g = p.grad
            if g is not None:
                _check_gradient(optimizer, group, p, g)
                owners.append(p)
            state = optimizer.state.get(p)
            if state:
                check_state(optimizer, p, state)
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


def _check_gradient(optimizer: DRCL, group: dict[str, Any], p: Tensor, g: Tensor) -> None:
    if g.is_sparse:
        if optimizer.holds(group, p):
            raise ValueError(
                f"parameter {optimizer.name_of(p)!r} is protected but has a sparse gradient; use sparse=False in "
                "its module, or put it in a group with free=True"
            )
    elif g.shape != p.shape or g.dtype is not p.dtype or g.device != p.device or _gone(g):
        raise ValueError(
            f"the gradient of {optimizer.name_of(p)!r} is {_facts(g)}, but the parameter is {_facts(p)}; the parameter "
            "was replaced after backward(): call zero_grad() and backward() again"
        )


def check_state(optimizer: DRCL, p: Tensor, state: dict[str, Any]) -> None:
    """Raise unless what is kept of a parameter still fits it."""
    shape, device = p.shape, p.device
    for key in TENSORS:
        t = state.get(key)
        if t is None:
            continue
        if t.shape != shape or t.device != device or (t.dtype is not p.dtype and key != "importance") or _gone(t):
            raise ValueError(
                f"parameter {optimizer.name_of(p)!r} is {_facts(p)} now, but its {key.replace('_', ' ')} is "
                f"{_facts(t)}: it was changed since. Put it back, or make a new optimizer; no weight was changed"
            )


def _gone(t: Tensor) -> bool:
    """Whether the memory of a tensor was given back, as sharding tools do."""
    return t.data_ptr() == 0 and t.numel() > 0 and not t.is_meta


def _facts(t: Tensor) -> str:
    if _gone(t):
        return f"of shape {tuple(t.shape)} without memory"
    return f"{str(t.dtype).removeprefix('torch.')} of shape {tuple(t.shape)} on {t.device}"
