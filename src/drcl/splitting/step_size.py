"""The step size that a proposal really took.

The proximal map must use the same step size as the proposal. If x = y - gamma * grad f, weight by weight, the fixed
point of the map of gamma * strength * penalty is the minimiser of loss + strength * penalty; with any other gamma it is
the minimiser for another strength. So gamma is how far the proposal moves per step and unit of a constant gradient:

    SGD                 lr
    SGD with momentum   lr * (1 - dampening) / (1 - momentum)     the buffer sums a constant gradient up to that
    Adam and similar    lr / (sqrt(v) + eps)                      different for every weight
    anything else       |x - y| / |sum of the gradients|          measured, one per parameter

In an eigenbasis, Adam's metric 1/gamma is replaced by its diagonal along the directions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from drcl import sharding
from drcl.directions.basis import Eigenbasis, as_matrix
from drcl.importance.base import importance_dtype

if TYPE_CHECKING:
    from drcl.optimizer import DRCL


def rate(group: dict[str, Any]) -> float:
    """How far a step moves a weight per unit of a constant gradient, as far as it follows from the group's numbers."""
    lr, momentum = float(group["lr"]), float(group.get("momentum") or 0.0)
    if not 0 < momentum < 1:
        return lr
    return lr * max(0.0, 1 - float(group.get("dampening") or 0.0)) / (1 - momentum)


def told_by_groups(optimizer: DRCL) -> bool:
    """Whether `rate` is the step size: for SGD, its own or a wrapped one, and for LBFGS with its line search."""
    return optimizer.inner is None or isinstance(optimizer.inner, (torch.optim.SGD, torch.optim.LBFGS))


def measures(optimizer: DRCL, p: Tensor) -> bool:
    """Whether the step size needs the sum of this parameter's gradients."""
    return not told_by_groups(optimizer) and _metric(optimizer, p) is None and not _like_adam(optimizer)


class Sizes:
    """The step sizes of one group's finished proposal, relative to the sum of its rates.

    With `whole`, the group, they are relative to the mean step size of the group. A strength times `mean` is then a
    strength for step sizes as they are. `least` is the smallest allowed `mean`.
    """

    def __init__(
        self,
        optimizer: DRCL,
        gamma: float,
        damping: float,
        whole: dict[str, Any] | None = None,
        least: float = 0.0,
    ) -> None:
        self.optimizer, self.gamma, self.damping = optimizer, gamma, damping
        self.mean: Tensor | float = 1.0
        if whole is not None:
            moving = [p for p in whole["params"] if optimizer.holds(whole, p) and "start" in optimizer.state[p]]
            metrics = [_metric(optimizer, p) for p in moving]
            if any(m is None for m in metrics):
                self.mean = 1 / self._measured(moving)
            elif metrics:
                total = torch.stack([sharding.squared(m.sqrt()) for m in metrics if m is not None]).sum()
                self.mean = total / sum(p.numel() for p in moving)
            # clamp, because reading a number from the device would wait for it
            self.mean = self.mean.clamp(min=least) if isinstance(self.mean, Tensor) else max(self.mean, least)

    def weights(self, p: Tensor, importance: Tensor) -> Tensor:
        """Importance plus damping, times gamma of each weight, divided by the sum of the rates."""
        importance = importance + self.damping
        metric = _metric(self.optimizer, p)
        if metric is None:
            return importance * (self._measured([p]) * self.mean)
        return importance * self.mean / metric.to(importance.dtype)

    def directions(self, basis: Eigenbasis, parts: Sequence[Tensor]) -> Eigenbasis:
        """The same along the directions of a layer: of its weight and the bias that moves with it."""
        wide = basis.at_work(importance_dtype(parts[0]))
        values = wide.eigenvalues + self.damping
        metrics = [None if m is None else sharding.full(m) for m in (_metric(self.optimizer, p) for p in parts)]
        if any(m is None for m in metrics):
            return replace(basis, eigenvalues=values * (self._measured(parts) * self.mean))
        groups, positions = basis.eigenvalues.shape[:2]
        whole = as_matrix(metrics[0].to(values.dtype), groups, positions)  # type: ignore[union-attr]
        if basis.bias:
            # A bias that does not move has no step size, so use that of its output's weights.
            own = whole.mean(-1) if len(parts) == 1 else metrics[1].to(values.dtype).reshape(groups, 1, -1)  # type: ignore[union-attr]
            whole = torch.cat([whole, own[..., None]], -1)
        return replace(
            basis, eigenvalues=values * self.mean / wide.see(whole).clamp(min=torch.finfo(values.dtype).tiny)
        )

    def _measured(self, parts: Sequence[Tensor]) -> Tensor | float:
        """How far these parameters moved together, divided by their summed gradients and the sum of the rates."""
        moved: list[Tensor] = []
        pulled: list[Tensor] = []
        for p in parts:
            state = self.optimizer.state[p]
            if "gradients" in state and "start" in state:
                moved.append(sharding.squared(p - state["start"]))
                pulled.append(sharding.squared(state["gradients"]))
        if not pulled or not self.gamma > 0:
            return 1.0
        # The number stays on the parameters' device, because reading it would wait for the device.
        below = torch.stack(pulled).sum()
        return torch.where(below > 0, (torch.stack(moved).sum() / below).sqrt() / self.gamma, 1.0)


def _like_adam(optimizer: DRCL) -> bool:
    assert optimizer.inner is not None
    return isinstance(optimizer.inner, (torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam))


def _metric(optimizer: DRCL, p: Tensor) -> Tensor | None:
    """sqrt(v) + eps, by which Adam divides, with bias correction; None if the optimizer keeps no v."""
    if optimizer.inner is None:
        return None
    state = optimizer.inner.state.get(p, {})
    v = state.get("max_exp_avg_sq", state.get("exp_avg_sq"))
    if not _like_adam(optimizer) or not isinstance(v, Tensor) or v.shape != p.shape or "step" not in state:
        return None
    group = next(g for g in optimizer.param_groups if any(q is p for q in g["params"]))
    step = state["step"]  # may be on a device, if Adam runs fused or is captured, and then stays there
    start = 1 - float(group["betas"][1]) ** (step if isinstance(step, Tensor) and not step.is_cpu else float(step))
    return (v / start).sqrt_().add_(float(group["eps"]))
