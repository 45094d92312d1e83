"""The learning rate within a task: constant, half a cosine from the first step to the last, or by validation loss."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from drcl.lab.methods.base import Where
from drcl.lab.training.plateau import Plateau


def schedule(
    optimizer: torch.optim.Optimizer, kind: str, at: Where, plateau: Plateau | None = None
) -> Callable[[], None]:
    """A function that sets every group's rate for the current step. Groups keep their proportions. The rate they were
    made with is stored in them, so that an optimizer that outlives a task starts the next one with its full rate."""
    for group in optimizer.param_groups:
        group.setdefault("initial_lr", group["lr"])

    def apply(factor: float) -> None:
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * factor

    if plateau is not None:
        return lambda: apply(plateau.scale)
    if kind == "cosine":
        return lambda: apply(0.5 * (1 + math.cos(math.pi * at.step / at.steps)))
    apply(1.0)
    return lambda: None
