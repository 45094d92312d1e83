"""The input space of each layer, as gradient projection sees it: recording inputs, growing a basis, projecting.

A layer computes ``W x``, with x an input vector (linear) or an unfolded patch (convolution); where it has a bias, x
ends in a 1 and W in the bias as a last column, so that one rule covers both and outputs are kept exactly. Each row of a
weight gradient is a sum of such x; taking out what lies in the span of old x leaves old outputs unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from drcl.lab.networks import Network
from drcl.preserve import undisturbed

Layer = nn.Linear | nn.Conv2d

# Share of the energy below which a direction is rounding noise of the singular value decomposition.
NOISE = 1e-12


def without_inputs(layers: Iterable[str], protected: Iterable[str]) -> set[str]:
    """Protected parameters without inputs to project by: scale and shift of norm layers."""
    return set(protected) - {f"{name}.{word}" for name in layers for word in ("weight", "bias")}


def matrix_layers(model: nn.Module, parameters: Mapping[str, nn.Parameter]) -> dict[str, Layer]:
    """Linear and convolutional layers whose weights are among `parameters`, by name."""
    found: dict[str, Layer] = {}
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Linear | nn.Conv2d) and f"{name}.weight" in parameters:
            if isinstance(layer, nn.Conv2d) and (
                layer.groups != 1 or layer.padding_mode != "zeros" or isinstance(layer.padding, str)
            ):
                raise ValueError(
                    f"{name} is a convolution with groups={layer.groups}, padding={layer.padding!r} "
                    f"({layer.padding_mode}): its patches are only defined for groups=1 and a number of zeros around"
                )
            found[name] = layer
    return found


def columns(layer: Layer, x: Tensor) -> Tensor:
    """The input vectors of a layer for a batch, ``[d, n]``."""
    if isinstance(layer, nn.Conv2d):
        how: dict[str, Any] = dict(dilation=layer.dilation, padding=layer.padding, stride=layer.stride)
        found = F.unfold(x, layer.kernel_size, **how).transpose(0, 1).flatten(1)
    else:
        found = x.reshape(-1, x.shape[-1]).T
    return found if layer.bias is None else torch.cat([found, found.new_ones(1, found.shape[1])])


def squeeze(inputs: Tensor) -> Tensor:
    """A matrix with the same ``R R^T``, so the same left singular vectors and values, and at most d columns: patches
    come in tens of thousands, their Gram matrix does not grow."""
    if inputs.shape[1] <= inputs.shape[0]:
        return inputs
    values, vectors = torch.linalg.eigh(inputs @ inputs.T)
    return vectors * values.clamp(min=0).sqrt()


def record(
    model: Network,
    layers: Mapping[str, Layer],
    batches: Iterable[tuple[Tensor, Tensor]],
    head: int,
    average: int = 1,
) -> dict[str, Tensor]:
    """Inputs of each layer in evaluation mode, squeezed, in float64; with `average`, the means over that many images
    each."""
    kept: dict[str, Tensor] = {}

    def keep(name: str, layer: Layer, x: Tensor) -> None:
        x = x.double()
        if average > 1:
            x = torch.stack([part.mean(0) for part in x.split(average)])
        new = columns(layer, x)
        kept[name] = squeeze(torch.cat([kept[name], new], dim=1) if name in kept else new)

    hooks = [
        layer.register_forward_pre_hook(lambda module, args, name=name, layer=layer: keep(name, layer, args[0]))
        for name, layer in layers.items()
    ]
    try:
        with undisturbed(model), torch.no_grad():
            model.eval()
            for x, _ in batches:
                model(x, head)
    finally:
        for hook in hooks:
            hook.remove()
    return kept


def grow(basis: Tensor, inputs: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """New orthonormal directions (and their singular values) that, together with `basis`, hold at least the share
    `threshold` of the energy of `inputs`; the fewest that do, none if the basis does already."""
    basis = basis.to(inputs)
    rest = inputs - basis @ (basis.T @ inputs)
    vectors, values, _ = torch.linalg.svd(rest, full_matrices=False)
    total = inputs.square().sum()
    missing = threshold * total - (total - rest.square().sum())
    held = torch.cumsum(values.square(), 0)
    count = int((held < missing).sum()) + 1 if missing > 0 else 0
    count = min(count, int((values.square() > NOISE * total).sum()), len(basis) - basis.shape[1])
    # Orthogonalise again: a direction with little energy is orthogonal to the basis only up to rounding.
    new = vectors[:, :count]
    new = torch.linalg.qr(new - basis @ (basis.T @ new))[0]
    return new, values[:count]


def weights(layer: Layer) -> Tensor:
    """The weights of a layer as a matrix ``[out, d]``, the bias in its last column."""
    flat = layer.weight.flatten(1)
    return flat if layer.bias is None else torch.cat([flat, layer.bias[:, None]], dim=1)


def gradient(layer: Layer) -> Tensor | None:
    """The gradient of these weights, in the same form; None if there is none."""
    if layer.weight.grad is None:
        return None
    flat = layer.weight.grad.flatten(1)
    if layer.bias is None:
        return flat
    assert layer.bias.grad is not None
    return torch.cat([flat, layer.bias.grad[:, None]], dim=1)


def write_gradient(layer: Layer, matrix: Tensor) -> None:
    """Put such a matrix back."""
    assert layer.weight.grad is not None
    if layer.bias is not None:
        assert layer.bias.grad is not None
        layer.bias.grad.copy_(matrix[:, -1])
        matrix = matrix[:, :-1]
    layer.weight.grad.copy_(matrix.reshape(layer.weight.shape))


def project(matrix: Tensor, basis: Tensor, importance: Tensor | None = None) -> Tensor:
    """``G - G M diag(importance) M^T``; without importances, all 1: what is left is orthogonal to the basis."""
    along = matrix @ basis
    return matrix - (along if importance is None else along * importance) @ basis.T
