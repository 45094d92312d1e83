"""Sums over the processes that share a model (`drcl.sharding`): each sees its own samples, all get the same importance.

Inside `of(mesh)` the sums of estimators run over all processes too. Outside there is only one process, and every
function here returns its argument. Under DistributedDataParallel nothing is added: give all processes the same batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_mesh: Any = None


@contextmanager
def of(mesh: Any) -> Iterator[None]:
    """Inside, the processes of this mesh work together."""
    global _mesh
    before, _mesh = _mesh, mesh
    try:
        yield
    finally:
        _mesh = before


def _groups(mesh: Any) -> list[Any]:
    return [] if mesh is None else [mesh.get_group(d) for d in range(mesh.ndim)]


def add_(tensors: Iterable[Tensor]) -> None:
    """Add tensors over processes, in place; all processes must give the same number of tensors and shapes."""
    groups = _groups(_mesh)
    for t in tensors if groups else ():
        for group in groups:
            dist.all_reduce(t, group=group)


def mean_(tensors: Iterable[Tensor]) -> None:
    """Their mean over processes, in place."""
    for t in list(tensors) if _mesh is not None else ():
        add_([t])
        t.div_(_mesh.size())


def added(number: int) -> int:
    """The sum of a whole number."""
    return number if _mesh is None else sum(_all(number))


def same_(tensors: Iterable[Tensor]) -> None:
    """Copy the first process's tensors to all, in place: another machine may choose other signs of eigenvectors."""
    groups = _groups(_mesh)
    for t in tensors if groups else ():
        for group in groups:
            dist.broadcast(t, group=group, group_src=0)


def common(names: Iterable[str]) -> set[str]:
    """The names that all processes have."""
    return set(names) if _mesh is None else set.intersection(*_all(set(names)))


def seed(number: int) -> int:
    """A different seed for each process; the first keeps the number."""
    if _mesh is None:
        return number
    place = 0
    for at, size in zip(_mesh.get_coordinate(), _mesh.shape):
        place = place * size + at
    return int(number) + 1_000_003 * place


@contextmanager
def together() -> Iterator[None]:
    """If one process fails, all fail; otherwise the others would wait for it forever."""
    if _mesh is None:
        yield
        return
    failure: Exception | None = None
    try:
        yield
    except Exception as reason:
        failure = reason
    told = _all(None if failure is None else f"process {dist.get_rank()}: {type(failure).__name__}: {failure}")
    if failure is not None:
        raise failure
    for words in told:
        if words is not None:
            raise RuntimeError(words)


def largest(number: int, mesh: Any, device: torch.device) -> int:
    """The largest number among all processes of a mesh."""
    found = torch.tensor(number, device=device)
    for group in _groups(mesh):
        dist.all_reduce(found, op=dist.ReduceOp.MAX, group=group)
    return int(found)


def _all(value: Any) -> list[Any]:
    found = [value]
    for group in _groups(_mesh):
        parts: list[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(parts, found, group=group)
        found = [one for some in parts for one in some]
    return found
