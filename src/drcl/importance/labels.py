"""What a sample's gradient is the gradient of: derivatives of per-sample losses with respect to the output.

One cotangent gives one backward pass. Drawn labels, random signs and true labels take one; the exact expectation over
the labels of a softmax takes one fewer than there are classes.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from drcl.per_sample.draw import map_tensors, take, tensors
from drcl.per_sample.plan import Cotangents

__all__ = ["exact_cotangents", "loss_cotangents", "one_hot_cotangents", "sampled_cotangents", "signed_cotangents"]


def probabilities(output: Any, length: int) -> torch.Tensor:
    """The softmax of logits, after making sure that they are logits."""
    if not isinstance(output, torch.Tensor):
        raise TypeError(
            f"the model returned {type(output).__name__}, not a tensor of logits; "
            "pass forward=lambda model, batch: (logits, labels)"
        )
    shape = list(output.shape)
    if output.ndim != 2:
        raise ValueError(
            f"logits must have shape [samples, classes], got {shape}; for any other output use "
            "Fisher(labels='empirical', loss=...) with a loss of your own"
        )
    if shape[0] != length:
        raise ValueError(f"the model returned logits of shape {shape} for {length} samples; one row each is needed")
    if shape[1] < 2:
        raise ValueError(
            f"logits of shape {shape} have one class, whose softmax is constant; for a single logit use "
            "Fisher(labels='empirical', loss=...), for instance with binary cross entropy"
        )
    return output.detach().softmax(1)


def sampled_cotangents(output: Any, length: int, rng: np.random.Generator) -> Cotangents:
    """Labels drawn from the softmax by inverting its distribution function: one uniform number a sample."""
    p = probabilities(output, length)
    uniform = torch.from_numpy(rng.random((length, 1))).to(p.device)
    below = p.cumsum(1, dtype=torch.float64) <= uniform
    label = below.sum(1, keepdim=True).clamp_(max=p.shape[1] - 1)
    return [[p.scatter_(1, label, -1.0, reduce="add")]]


def one_hot_cotangents(output: Any, target: Any, length: int) -> Cotangents:
    """The cross entropy's derivative at the data's own labels."""
    p = probabilities(output, length)
    if target is None:
        raise ValueError("labels='empirical' needs labels, but the batch has none; use labels='sampled'")
    target = torch.as_tensor(target, device=p.device)
    if target.shape != (length,) or target.is_floating_point() or target.dtype == torch.bool:
        raise ValueError(
            f"labels must be whole numbers of shape [{length}], got {target.dtype} of shape "
            f"{list(target.shape)}; for other targets use Fisher(labels='empirical', loss=...)"
        )
    outside = (target < 0) | (target >= p.shape[1])
    if outside.any():
        raise ValueError(
            f"label {int(target[outside][0])} is out of range: the model has {p.shape[1]} classes, "
            f"0 to {p.shape[1] - 1}"
        )
    return [[p.scatter_(1, target.long()[:, None], -1.0, reduce="add")]]


def exact_cotangents(output: Any, length: int) -> Cotangents:
    """Columns s_k with sum_k s_k s_k^T = diag(p) - p p^T, the covariance of a one-hot draw from p.

    The expected squared gradient is the diagonal of J^T (diag(p) - p p^T) J, so any such factor gives it; the
    triangular one is known in closed form and has one column fewer than there are classes. With
    q_k = p_{k+1} + ... + p_C:  s_k[k] = sqrt(p_k q_k / q_{k-1}) and s_k[i] = -p_i sqrt(p_k / (q_{k-1} q_k))
    for i > k.
    """
    p = probabilities(output, length)
    # In double and summed from the small end, so that a confident model's tail is not rounded away.
    wide = torch.nn.functional.softmax(output.detach().double(), 1)
    tail = wide.flip(1).cumsum(1).flip(1)
    columns = []
    for k in range(p.shape[1] - 1):
        here, rest, before = wide[:, k], tail[:, k + 1], tail[:, k]
        column = torch.zeros_like(wide)
        column[:, k] = (here * rest / before).sqrt()
        column[:, k + 1 :] = -wide[:, k + 1 :] * (here / (before * rest)).sqrt()[:, None]
        # No mass left after class k, or too little for a quotient to be finite: nothing left to vary.
        enough = before * rest >= torch.finfo(wide.dtype).tiny
        columns.append([torch.where(enough[:, None], column, 0.0).to(p.dtype)])
    return columns


def signed_cotangents(output: Any, length: int, rng: np.random.Generator) -> Cotangents:
    """The exact cotangents added up with random signs: v = sum_k e_k s_k, so that E[v v^T] = diag(p) - p p^T.

    A drawn label is nearly always the sure one of a confident model and then carries almost no gradient; v has the
    same expectation and, in every draw, the size of what it estimates. With two classes it is exact.
    """
    columns = torch.stack([column for (column,) in exact_cotangents(output, length)])
    signs = torch.from_numpy(rng.integers(0, 2, (length, len(columns))) * 2.0 - 1.0).to(columns)
    return [[(columns * signs.T[:, :, None]).sum(0)]]


def loss_cotangents(loss: Callable[[Any, Any], Any], output: Any, target: Any, length: int) -> Cotangents:
    """Derivatives of the caller's own loss, each sample's with respect to its own output."""
    leaves = tensors(output)
    if not leaves:
        raise TypeError(f"the model returned {type(output).__name__}, which holds no tensors; pass forward=")
    for leaf in leaves:
        if leaf.ndim == 0 or leaf.shape[0] != length:
            raise ValueError(
                f"the model returned a tensor of shape {list(leaf.shape)} for {length} samples; "
                "the samples have to lie along the first dimension of its output"
            )
    if isinstance(target, torch.Tensor):
        target = target.to(leaves[0].device)
    free = map_tensors(lambda t: t.detach().requires_grad_(t.is_floating_point()), output)
    value = loss(free, target)
    if not isinstance(value, torch.Tensor) or (value.ndim > 0 and value.shape != (length,)):
        got = list(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
        raise ValueError(
            f"loss(output, target) must return a scalar or a vector of the {length} samples' losses, "
            f"got {got}; sum or average over everything but the samples"
        )
    if value.ndim > 0:
        return [_derivative(value.sum(), tensors(free))]
    # A scalar may weigh samples unevenly (ignored tokens, class weights): ask for each sample's own.
    singles = []
    for i in range(length):
        row = slice(i, i + 1)
        one = map_tensors(lambda t: t.detach().requires_grad_(t.is_floating_point()), take(output, row))
        singles.append(_derivative(loss(one, None if target is None else take(target, row)), tensors(one)))
    return [[torch.cat(column) for column in zip(*singles)]]


def _derivative(value: torch.Tensor, leaves: list[torch.Tensor]) -> list[torch.Tensor]:
    varying = [leaf for leaf in leaves if leaf.requires_grad]
    if not value.requires_grad:
        raise ValueError("loss(output, target) does not depend on the output: it must not detach it")
    found = dict(zip(map(id, varying), torch.autograd.grad(value, varying, allow_unused=True)))
    return [torch.zeros_like(leaf) if (g := found.get(id(leaf))) is None else g for leaf in leaves]
