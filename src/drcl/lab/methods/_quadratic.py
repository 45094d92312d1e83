"""The quadratic drift penalty ``lam/2 * sum F (w - a)^2`` that EWC, SI, MAS and L2 share, and its gradient.

The gradient ``lam * F * (w - a)`` is added after the backward pass, in closed form: one pass over the weights and no
graph. It is the gradient autograd would give.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn


def copies(parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """The current weights, as anchors."""
    return {name: p.detach().clone() for name, p in parameters.items()}


def penalty(
    parameters: Mapping[str, Tensor], anchor: Mapping[str, Tensor], importance: Mapping[str, Tensor] | None, lam: float
) -> Tensor:
    """``lam/2 * sum F (w - a)^2``; if F is not given, it is one everywhere."""
    total = torch.zeros(())
    for name, a in anchor.items():
        square = (parameters[name] - a).square()
        total = total.to(square) + (square if importance is None else importance[name] * square).sum()
    return lam / 2 * total


@torch.no_grad()
def add_pull(
    parameters: Mapping[str, Tensor], anchor: Mapping[str, Tensor], importance: Mapping[str, Tensor] | None, lam: float
) -> None:
    """Add the penalty's gradient to ``.grad``; weights without a gradient are skipped, because they are not trained."""
    names = [name for name in anchor if parameters[name].grad is not None]
    if not names:
        return
    drift = list(torch._foreach_sub([parameters[n].detach() for n in names], [anchor[n] for n in names]))
    if importance is not None:
        torch._foreach_mul_(drift, [importance[n] for n in names])
    gradients = [g for g in (parameters[n].grad for n in names) if g is not None]
    torch._foreach_add_(gradients, drift, alpha=lam)
