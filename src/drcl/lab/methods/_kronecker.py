"""Kronecker factors of the Fisher information, for methods beside DRCL that use them. Whatever such a method takes from
`drcl.directions` it takes here.

A layer's weight is seen as matrices [groups, positions, outputs, inputs], its bias as the weight of a last input that
is always 1. The first dimensions are 1 except for grouped convolutions, and where a convolution's kernel positions are
kept apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from drcl.directions.basis import Eigenbasis, as_matrix, as_weight, bias_of
from drcl.directions.kronecker import History
from drcl.importance import Labels
from drcl.lab.common import seeds
from drcl.lab.common.parallel import FromTheFirst
from drcl.lab.methods.base import Method
from drcl.lab.streams import Task

__all__ = ["Eigenbasis", "curved", "matrix", "measure", "pack", "split", "unpack", "write"]


def measure(
    method: Method,
    task: Task,
    samples: int | None,
    labels: Labels,
    before: Mapping[str, Eigenbasis] | None = None,
    decay: float = 1.0,
    **options: Any,
) -> tuple[dict[str, Eigenbasis], dict[str, Tensor]]:
    """The Fisher information of a task at the weights the network holds now, for all that earlier tasks depend on.

    First the layers' bases by the name of the weight, to which those of the tasks `before` are added; then the diagonal
    of everything else, which is of this task alone. Both are means over examples.
    """
    count = len(task.train) if samples is None else min(samples, len(task.train))
    method.gradients += -(-count // method.setting.batch)
    seed = seeds.derive(method.setting.seed, method.name, "fisher", task.index)
    estimator = FromTheFirst(samples=count, labels=labels, seed=seed, rank=None, **options)
    batches = list(method.sample(task, count, "fisher"))
    with method.one_by_one(task, batches):
        diagonal, bases = estimator.measure(
            method.model,
            batches,
            method.protected(),
            lambda model, batch: (model(batch[0], task.head), batch[1]),
            History(bases=before or {}, mean=1.0, keep=decay if before else 0.0),
        )
    inside = set(bases) | {bias_of(name) for name, basis in bases.items() if basis.bias}
    return bases, {name: t for name, t in diagonal.items() if name not in inside}


def pack(bases: Mapping[str, Eigenbasis]) -> dict[str, Any]:
    """Bases as a method's state can keep them."""
    return {name: {"tensors": basis.tensors(), "facts": basis.facts()} for name, basis in bases.items()}


def unpack(state: Mapping[str, Any]) -> dict[str, Eigenbasis]:
    return {name: Eigenbasis.restored(kept["tensors"], kept["facts"]) for name, kept in state.items()}


def matrix(tensors: Mapping[str, Tensor], name: str, factor: Tensor) -> Tensor:
    """A layer's weight and bias as one stack of matrices; `factor` is that of its inputs, and says how they lie."""
    groups, positions, bias = _layout(tensors[name], factor)
    found = as_matrix(tensors[name], groups, positions)
    return torch.cat([found, tensors[bias_of(name)].reshape(groups, 1, -1, 1)], -1) if bias else found


def split(stack: Tensor, like: Mapping[str, Tensor], name: str, factor: Tensor) -> dict[str, Tensor]:
    """The inverse: weight and bias by name, in the shapes they have in `like`."""
    if not _layout(like[name], factor)[2]:
        return {name: as_weight(stack, like[name])}
    return {name: as_weight(stack[..., :-1], like[name]), bias_of(name): stack[..., -1].flatten()}


@torch.no_grad()
def write(stack: Tensor, into: Mapping[str, Tensor], name: str, factor: Tensor) -> None:
    """Put such matrices back into the tensors they came from."""
    for key, value in split(stack, into, name, factor).items():
        into[key].copy_(value)


def curved(inputs: Tensor, outputs: Tensor, stack: Tensor) -> Tensor:
    """G D A, with a factor that is only a diagonal as well."""
    left = outputs[:, None] @ stack if outputs.ndim == 3 else outputs[:, None, :, None] * stack
    return left @ inputs[:, None] if inputs.ndim == 3 else left * inputs[:, None, None, :]


def _layout(weight: Tensor, factor: Tensor) -> tuple[int, int, bool]:
    """Groups, kernel positions that are kept apart, and whether the bias is part of the matrix."""
    groups, inputs = factor.shape[:2]
    size = weight[0].numel()
    return (groups, 1, True) if inputs > size else (groups, size // inputs, False)
