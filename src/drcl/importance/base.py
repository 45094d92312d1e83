"""What `DRCL.consolidate` needs of an importance estimator: one method that measures, one that says how."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import nn

from drcl.per_sample.plan import Forward

__all__ = ["Importance"]


class Importance(ABC):
    """Derive from it to bring an estimator of your own."""

    needs_data: ClassVar[bool] = True

    @abstractmethod
    def estimate(
        self,
        model: nn.Module,
        batches: Any,
        parameters: dict[str, nn.Parameter],
        forward: Forward | None = None,
    ) -> dict[str, torch.Tensor]:
        """One tensor >= 0 a parameter: same name, shape and device; float32, or float64 for float64 weights.

        `parameters` are parameters of `model`. `forward(model, batch)` returns `(output, target)`; without it
        a batch is `(inputs, labels, ...)`. The model's modes, gradients and buffers and all global random
        generators are left as found. `batches` may be None when `needs_data` is False.
        """

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """How the estimate is made, as plain values, to be stored beside it."""
