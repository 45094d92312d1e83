"""The coordinates of a sharded layer: every process has some rows (`drcl.sharding`), so some outputs and all inputs.

With D_p the rows of one process and U_p the same rows of U_G, U_G^T D U_A is the sum over processes of U_p^T D_p U_A.
So every process rotates the inputs of its own rows, only the sum is sent, and every process rotates back its own rows,
U_p prox(...) U_A^T. The processes share the work; all of them hold the rotated coordinates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from drcl import sharding
from drcl.directions.basis import Eigenbasis
from drcl.directions.coordinates import Coordinates
from drcl.prox import Penalty


class Rows(NamedTuple):
    """The rows of a sharded weight that this process has."""

    weight: Tensor
    at: slice


def rows_of(basis: Eigenbasis, parts: Sequence[Tensor | None]) -> Rows | None:
    """The rows of a weight and its bias; None if they are not sharded, or if their layer must be gathered.

    It must be gathered if outputs are in groups or not rotated, if directions are left out, if columns are sharded
    instead of rows, or if a process has no rows.
    """
    weight = parts[0]
    if weight is None or any(part is None or sharding.apart(part, weight) for part in parts):
        return None
    one: Any = weight
    spread = [d for d, place in enumerate(one.placements) if place.is_shard()]
    if len(basis.eigenvalues) > 1 or basis.outputs is None or not basis.complete or len(spread) != 1:
        return None
    count, total = one.device_mesh.size(spread[0]), len(weight)
    each = -(-total // count)
    if one.placements[spread[0]].dim != 0 or (count - 1) * each >= total:
        return None
    first = each * one.device_mesh.get_local_rank(spread[0])
    return Rows(weight, slice(first, min(first + each, total)))


class RowCoordinates(Coordinates):
    """`d` are the rows of this process, and so is what `settled` returns; everything else is the same for all."""

    def __init__(self, basis: Eigenbasis, d: Tensor, mine: Rows) -> None:
        self.basis, self.d, self.rows, self.columns = basis, d, None, None
        u, v = basis.sides()
        assert v is not None
        self.own = v[..., mine.at, :]
        self.kept = sharding.added(self.own.mT @ (d if u is None else d @ u), mine.weight)

    def settled(self, penalty: Penalty) -> Tensor | None:
        kept = penalty(self.kept, torch.zeros_like(self.kept), self.basis.eigenvalues)
        if kept.is_cpu and not bool(kept.any()):
            return None
        u, _ = self.basis.sides()
        back = self.own @ kept
        return back if u is None else back @ u.mT
