"""Kronecker factors of the Fisher information, for methods other than DRCL. All that such a method uses of
`drcl.directions` is here.

A layer's weight is seen as matrices [groups, positions, outputs, inputs], its bias as the weight of a last input that
is always 1. The first dimensions are 1, except for grouped convolutions and where a convolution's kernel positions are
kept separately.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from drcl.directions.basis import Eigenbasis, as_matrix, as_weight, bias_of
from drcl.importance import Labels
from drcl.importance.base import History
from drcl.lab.common import seeds
from drcl.lab.methods._estimators import FromTheFirst
from drcl.lab.methods.base import Method
from drcl.lab.streams import Task

__all__ = ["Eigenbasis", "Information", "curved", "from_factors", "matrix", "measure", "split", "write"]


@dataclass(frozen=True)
class Information:
    """The Fisher information of the tasks so far: bases of layers by the name of the weight, a diagonal elsewhere."""

    bases: dict[str, Eigenbasis] = field(default_factory=dict)
    diagonal: dict[str, Tensor] = field(default_factory=dict)

    def pack(self) -> dict[str, Any]:
        """In a form that a method's state can store."""
        bases = {name: {"tensors": basis.tensors(), "facts": basis.facts()} for name, basis in self.bases.items()}
        return {"bases": bases, "diagonal": self.diagonal}

    @classmethod
    def unpack(cls, state: Mapping[str, Any]) -> Information:
        kept = state.get("bases", {}).items()
        bases = {name: Eigenbasis.restored(each["tensors"], each["facts"]) for name, each in kept}
        return cls(bases, state.get("diagonal", {}))

    def of_weights(self, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The diagonal for every weight, including those in layers."""
        found = dict(self.diagonal)
        for name, basis in self.bases.items():
            weight, bias = basis.diagonal()
            found[name] = as_weight(weight, like[name])
            if bias is not None:
                found[bias_of(name)] = bias.flatten()
        return found


def measure(
    method: Method,
    task: Task,
    samples: int | None,
    labels: Labels,
    before: Information | None = None,
    decay: float = 1.0,
    **options: Any,
) -> Information:
    """The Fisher information of a task at the network's current weights, for all parameters that earlier tasks depend
    on: a mean over examples, added to the remaining information of the tasks `before`.

    A layer may have a basis in one task and none in another: if its gradients cannot be distinguished from noise, it
    has a diagonal. Its stored information then changes its form.
    """
    count = len(task.train) if samples is None else min(samples, len(task.train))
    method.gradients += -(-count // method.setting.batch)
    seed = seeds.derive(method.setting.seed, method.name, "fisher", task.index)
    estimator = FromTheFirst(samples=count, labels=labels, seed=seed, rank=None, passes=2, **options)
    batches = list(method.sample(task, count, "fisher"))
    parameters = method.protected()
    old = before.of_weights(parameters) if before else {}
    history = History(bases=before.bases if before else {}, importance=old, mean=1.0, keep=decay if old else 0.0)
    with method.one_by_one(task, batches):
        measured = estimator.measure(
            method.model,
            batches,
            parameters,
            lambda model, batch: (model(batch[0], task.head), batch[1]),
            history,
        )
    importance, bases = measured.importance, measured.bases
    inside = set(bases) | {bias_of(name) for name, basis in bases.items() if basis.bias}
    diagonal = {name: t for name, t in importance.items() if name not in inside}
    for name, fresh in diagonal.items():
        if name in old:
            fresh.add_(old[name], alpha=decay)
    return Information(bases, diagonal)


def from_factors(tensors: Mapping[str, Tensor], name: str, inputs: Tensor, outputs: Tensor, count: float) -> Eigenbasis:
    """The basis of a layer of which only the sums of the factors were kept: single weights are used instead of
    directions until the factors of the next task are added."""
    groups, positions, bias = _layout(tensors[name], inputs)
    a, g = (t if t.ndim == 2 else t.diagonal(dim1=-2, dim2=-1) for t in (inputs, outputs))
    values = (g[:, None, :, None] * a[:, None, None, :] / count).expand(groups, positions, -1, -1)
    return Eigenbasis(None, None, values, inputs, outputs, bias, count)


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
    """G D A; a factor may also be only a diagonal."""
    left = outputs[:, None] @ stack if outputs.ndim == 3 else outputs[:, None, :, None] * stack
    return left @ inputs[:, None] if inputs.ndim == 3 else left * inputs[:, None, None, :]


def _layout(weight: Tensor, factor: Tensor) -> tuple[int, int, bool]:
    """Groups, kernel positions that are kept separately, and whether the bias is part of the matrix."""
    groups, inputs = factor.shape[:2]
    size = weight[0].numel()
    return (groups, 1, True) if inputs > size else (groups, size // inputs, False)
