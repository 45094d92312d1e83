"""A layer's drift D = [w b] - a in its eigenbasis, and the proximal map there.

If all directions are kept, the map is U_G prox(U_G^T D U_A) U_A^T. If some are left out, D has four parts:

    kept    U_G^T D U_A, direction by direction
    rows    U_G^T D (1 - U_A U_A^T): for each kept output the inputs left out, one vector with one penalty
    columns (1 - U_G U_G^T) D U_A: the same with outputs and inputs exchanged
    tail    the rest, one vector for the whole layer

The prox of a vector with one penalty multiplies it by a factor, so the last three need no rotation: 4 m n (j + k)
operations if j of m outputs and k of n inputs are kept, instead of 4 m n (m + n). If columns have the importance of the
tail and the penalty is L2, they share the tail's factor: only the c columns before them are rotated, 4 m n (j + c).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from drcl.directions.basis import Eigenbasis
from drcl.prox import Penalty


@dataclass
class Coordinates:
    """`d` is D as `Eigenbasis.difference` makes it; `settled` may write into it."""

    basis: Eigenbasis
    d: Tensor
    kept: Tensor = field(init=False)
    rows: Tensor | None = None  # U_G^T D, if inputs are left out
    columns: Tensor | None = None  # D U_A, if outputs are left out and all inputs are kept

    def __post_init__(self) -> None:
        basis = self.basis
        if basis.complete:
            self.kept = basis.rotate(self.d)
            return
        k, n = basis.kept[1], basis.size[1]
        u, v = basis.sides()
        if k < n:
            assert u is not None
            self.rows = self.d if v is None else v.mT @ self.d
            self.kept = self.rows @ u
        else:
            assert v is not None
            self.columns = self.d if u is None else self.d @ u
            self.kept = v.mT @ self.columns

    def sizes(self) -> Tensor:
        """The length of each coordinate, in the shape of the eigenvalues."""
        found = self.kept.abs()
        if self.basis.complete:
            return found
        squares = self.kept.double().square()
        rows = None if self.rows is None else self.rows.double().square().sum(-1) - squares.sum(-1)
        columns = None
        if self.basis.kept[0] < self.basis.size[0]:
            every = self._columns(self.basis.kept[1])
            columns = every.double().square().sum(-2) - squares.sum(-2)
        if rows is not None:
            found = torch.cat([found, rows.clamp(min=0).sqrt().to(found.dtype)[..., None]], -1)
        if columns is not None:
            if rows is not None:
                tail = self.d.double().square().sum((-2, -1)) - squares.sum((-2, -1)) - rows.sum(-1) - columns.sum(-1)
                columns = torch.cat([columns, tail[..., None]], -1)
            found = torch.cat([found, columns.clamp(min=0).sqrt().to(found.dtype)[..., None, :]], -2)
        return found

    def ratios(self, penalty: Penalty) -> Tensor:
        """The smallest strength that would hold each coordinate."""
        unit = (self.basis.eigenvalues + penalty.damping) * (penalty.gamma * (penalty.mix or 1.0))
        return self.sizes() / (unit * self._roots())

    def settled(self, penalty: Penalty) -> Tensor | None:
        """z - a by the prox, in the shape of D; None if it is zero everywhere."""
        basis, (j, k) = self.basis, self.basis.kept
        values = basis.eigenvalues
        kept = penalty(self.kept, torch.zeros_like(self.kept), values[..., :j, :k])
        if basis.complete:
            return None if _vanishes(kept) else basis.rotate_back(kept)
        factors = self._factors(penalty)
        if _vanishes(kept) and _vanishes(factors):
            return None
        u, v = basis.sides()
        if j == basis.size[0]:
            assert self.rows is not None
            assert u is not None
            c = factors[..., :, k:]
            out = (self.rows * c).add_((kept - self.kept * c) @ u.mT)
            return out if v is None else v @ out
        assert v is not None
        if self.rows is None:
            assert self.columns is not None
            c = factors[..., j:, :]
            out = (self.columns * c).add_(v @ (kept - self.kept * c))
            return out if u is None else out @ u.mT
        assert u is not None
        across, down, tail = factors[..., :j, k:], factors[..., j:, :k], factors[..., j:, k:]
        kept -= self.kept * (across + down - tail)
        own = basis.own_columns if not penalty.mix else k
        left = self._columns(own) * (down - tail)[..., :own]
        # Rotate both back in one product, so that D is read and written only once.
        ways = torch.cat([v.expand(*left.shape[:-1], -1), left], -1)
        first = _plus(self.rows.mul_(across - tail), kept, u.mT)
        back = torch.cat([first, u[..., :own].mT.expand(*first.shape[:2], -1, -1)], -2)
        return _plus(self.d, ways, back, tail)

    def penalty(self, penalty: Penalty) -> float:
        """strength * penalty of D: of each direction, and of each vector that has one penalty."""
        mix, sizes = penalty.mix, self.sizes().double()
        assert mix is not None
        weight = penalty.strength * (self.basis.eigenvalues.double() + penalty.damping)
        value = weight * (mix * self._roots().double() * sizes + (1 - mix) / 2 * sizes.square())
        return float(torch.where(sizes == 0, 0.0, value).sum())

    def _columns(self, count: int) -> Tensor:
        """D along the first kept inputs."""
        u = self.basis.sides()[0]
        if self.columns is not None:
            return self.columns[..., :count]
        return self.d if u is None else self.d @ u[..., :count]

    def _factors(self, penalty: Penalty) -> Tensor:
        """The factor by which the prox multiplies a vector with one penalty: soft threshold and shrinkage."""
        t = penalty.gamma * penalty.strength * (self.basis.eigenvalues + penalty.damping)
        mix = penalty.mix or 0.0
        shrunk = 1 / (1 + t * (1 - mix))
        if not mix:
            return shrunk
        size, bound = self.sizes(), t * mix * self._roots()
        return torch.where(size > bound, (1 - bound / size) * shrunk, torch.zeros_like(shrunk))

    def _roots(self) -> Tensor:
        out, into = self.basis.counts()
        return out.sqrt()[:, None] * into.sqrt()


def _vanishes(t: Tensor) -> bool:
    """Whether there is nothing to rotate back. Checked only on a CPU: it would wait for any other device."""
    return t.is_cpu and not bool(t.any())


def _plus(total: Tensor, a: Tensor, b: Tensor, scale: Tensor | None = None) -> Tensor:
    """scale * total + a @ b, in place; as one operation if there is a single matrix."""
    if total.shape[:2] == (1, 1) and total.is_cpu:  # reading a number would wait for any other device
        total[0, 0].addmm_(a[0, 0], b[0, 0], beta=1 if scale is None else float(scale))
        return total
    return (total if scale is None else total.mul_(scale)).add_(a @ b)
