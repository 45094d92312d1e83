"""Sums over samples of powers of per-sample gradients: the engine under every importance estimate.

For sample b and cotangent v_b (the derivative of its loss with respect to the model's output) the gradient is
g_b = J_b^T v_b; what is wanted is the sum over b of |g_b|^power, never a power of the sum.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from drcl.sampling import batch_length, take, tensors

__all__ = ["Forward", "per_sample_moments"]

Forward = Callable[[nn.Module, Any], tuple[Any, Any]]
Cotangents = list[list[torch.Tensor]]


def per_sample_moments(
    model: nn.Module,
    batches: Iterable[Any],
    parameters: dict[str, nn.Parameter],
    forward: Forward,
    directions: Callable[[Any, Any, int], Cotangents],
    power: int,
) -> tuple[dict[str, torch.Tensor], int]:
    """Sum of |per-sample gradient|^power over all samples of `batches` and all directions, and their number.

    `directions(output, target, length)` gives a list of cotangents of the output, each with one tensor for
    every tensor of the output. The model is expected in the mode it is to be judged in, with exactly the
    gradients of `parameters` switched on (see `drcl.undisturbed`).
    """
    sums = {name: torch.zeros_like(p, dtype=accumulator(p)) for name, p in parameters.items()}
    count = 0
    for batch in batches:
        with torch.no_grad():
            output, target = forward(model, batch)
        cotangents = directions(output, target, batch_length(batch))
        one_by_one(model, batch, parameters, forward, cotangents, power, sums)
        count += batch_length(batch)
    return sums, count


def accumulator(parameter: torch.Tensor) -> torch.dtype:
    return torch.float64 if parameter.dtype == torch.float64 else torch.float32


def one_by_one(
    model: nn.Module,
    batch: Any,
    parameters: dict[str, nn.Parameter],
    forward: Forward,
    cotangents: Cotangents,
    power: int,
    sums: dict[str, torch.Tensor],
) -> None:
    """The definition itself: one forward and one backward pass a sample. Slow, and right for every model."""
    for i in range(batch_length(batch)):
        output, _ = forward(model, take(batch, [i]))
        leaves = tensors(output)
        for k, cotangent in enumerate(cotangents):
            pairs = [(o, v[i : i + 1]) for o, v in zip(leaves, cotangent) if o.requires_grad]
            if not pairs:
                continue
            gradients = torch.autograd.grad(
                [o for o, _ in pairs],
                list(parameters.values()),
                [v for _, v in pairs],
                retain_graph=k + 1 < len(cotangents),
                allow_unused=True,
            )
            for name, gradient in zip(parameters, gradients):
                if gradient is not None:
                    sums[name] += gradient.to(sums[name].dtype).abs() ** power
