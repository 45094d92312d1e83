"""The proximal map of a product of two thin factors: a low-rank adapter (LoRA), held by what it adds to a weight.

An adapter adds s B A to a frozen weight W, and only this product matters: B A = (B T)(T^-1 A) for every T, and while B
is zero, as it is at first, no weight of A has any importance although the product does. So the importance is that of W,
along the directions of its layer, and DRCL holds the drift D = s B A - s B0 A0 from the product at the end of a task.
The map works on the two factors, because the optimizer steps in them. With the metrics M and N of these steps (one over
the step size, for each weight) and a proposal (Bx, Ax),

    minimise  |B - Bx|_M^2 / 2  +  |A - Ax|_N^2 / 2  +  strength * penalty(D)

For one factor alone this is least squares. In the eigenbasis every row of B is a system of r equations of its own,

    (diag(M_j) + s^2 A diag(F_j) A^T) b_j  =  diag(M_j) bx_j + s A (F_j * c_j),      c = s B0 A0

with F_j the importance of the directions in row j, times the strength; the rows of A are similar. This holds if a
factor has a single step size. A metric that differs from weight to weight, such as Adam's, is not diagonal in the
eigenbasis; then these systems, with its diagonal, precondition a few steps of conjugate gradients. The two factors are
solved in turn, beginning with the ones that the proposal started from. If the factors no longer change, they satisfy
both systems, however few steps were made: then B - Bx is the step size times the gradient, and loss and penalty
balance. An absolute value in the penalty is replaced by its bound |d| <= d^2 / 2|e| + |e| / 2, which is an equality at
e = d, with e the drift before.

Directions that a basis leaves out have one importance for each kept row, one for each kept column and one for the rest.
So only inner products of the factors are needed, minus those along the kept directions.

No tensor here is as large as W, unless its importance is.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from drcl.directions.basis import Eigenbasis
from drcl.prox import Penalty

ROUNDS = 3  # more rounds change single steps a little, and the end of training not at all
REWEIGHTED = 10  # rounds if the penalty has absolute values
CONJUGATE = 6  # steps if a factor's step sizes differ from weight to weight
_CHUNK = 2**24  # numbers in memory at once

Map = Callable[[Tensor], Tensor]


def wide(t: Tensor) -> torch.dtype:
    """The type to solve in: the systems are small, but their entries differ greatly in size."""
    return torch.float32 if t.device.type == "mps" else torch.float64


class Side:
    """One factor, [n, r], and the directions on its side of the product; None if that side is not rotated."""

    def __init__(self, directions: Tensor | None, start: Tensor, proposed: Tensor, anchor: Tensor) -> None:
        self.now, self.proposed, self.anchor = (t.detach().to(wide(t)) for t in (start, proposed, anchor))
        self.u = None if directions is None else directions[0].to(self.now)
        self.metric: Tensor | None = None  # one over the step size of each weight; None if the factor does not move
        self.uniform = True  # whether the metric is the same for all rows

    def steps(self, metric: Tensor, uniform: bool = False) -> None:
        """The step sizes' metric, [n, r]."""
        self.metric, self.uniform = metric.to(self.now), uniform or self.u is None

    def along(self, t: Tensor) -> Tensor:
        return t if self.u is None else self.u.mT @ t

    def back(self, t: Tensor) -> Tensor:
        return t if self.u is None else self.u @ t


class Product:
    """The drift D = scale * (rows columns^T - its anchor) of two factors, in its eigenbasis."""

    def __init__(self, basis: Eigenbasis, scale: float, rows: Side, columns: Side) -> None:
        self.rows, self.columns, self.scale, self.basis = rows, columns, scale, basis
        self.values = basis.eigenvalues[0, 0].to(rows.now)

    def sizes(self, proposed: bool = False) -> Tensor:
        """The length of each coordinate of D, in the shape of the eigenvalues."""
        sides = self.rows, self.columns
        # D as one product: the factors next to those of the anchor, with a minus sign for one of these.
        left, right = (torch.cat([s.proposed if proposed else s.now, s.anchor], 1) for s in sides)
        left[:, self.rows.now.shape[1] :].neg_()
        (a, b), factor = (s.along(t) for s, t in zip(sides, (left, right))), self.scale**2
        squares = (a @ b.mT).square()
        (j, k), (m, n) = self.basis.kept, self.basis.size
        across = (a @ (right.mT @ right) * a).sum(1) - squares.sum(1)
        down = (b @ (left.mT @ left) * b).sum(1) - squares.sum(0)
        tail = ((left.mT @ left) * (right.mT @ right)).sum() - squares.sum() - across.sum() - down.sum()
        found = torch.cat([squares, across[:, None]], 1) if k < n else squares
        if j < m:
            found = torch.cat([found, torch.cat([down, tail[None]])[None, : found.shape[1]]])
        return (factor * found.clamp(min=0)).sqrt()

    def penalty(self, penalty: Penalty) -> float:
        """strength * penalty of the drift, as for a layer whose weights are the product."""
        mix, sizes = penalty.mix, self.sizes()
        assert mix is not None
        weight = penalty.strength * (self.values + penalty.damping)
        value = weight * (mix * self._roots() * sizes + (1 - mix) / 2 * sizes.square())
        return float(torch.where(sizes == 0, 0.0, value).sum())

    def settle(self, penalty: Penalty, rounds: int | None = None) -> None:
        """The proximal map: both factors in turn, from where they started."""
        mix, least = penalty.mix or 0.0, torch.zeros(())
        for k in range(rounds or (REWEIGHTED if mix else ROUNDS)):
            weights = penalty.strength * (self.values + penalty.damping)
            if mix:
                # A large but finite weight keeps a coordinate at zero once it is there.
                sizes = self.sizes(proposed=k == 0)
                least = (1e-6 * sizes.amax()).clamp(min=1e-12) if k == 0 else least
                weights = weights * (mix * self._roots() / torch.maximum(sizes, least) + 1 - mix)
            self._solve(self.rows, self.columns, weights)
            self._solve(self.columns, self.rows, weights.mT)

    def _solve(self, side: Side, other: Side, weights: Tensor) -> None:
        """Solve the least squares for one factor, with the other fixed."""
        if side.metric is None:
            return
        if side.u is None:
            parts = torch.arange(len(weights), device=weights.device).split(self._rows_at_once(other))
            found = torch.empty_like(side.now)
            for part in parts:
                k, t = self._systems(weights[part], other)
                metric = side.metric[part]
                pull = metric * side.proposed[part] + _each(side.anchor[part], t)
                found[part] = _inverse(k, metric)(pull)
            side.now = found
            return
        pieces = [self._systems(w, other) for w in weights.split(self._rows_at_once(other))]
        system, pull = _Rotated(side, *(torch.cat(p) for p in zip(*pieces))), side.metric * side.proposed
        pull = pull + system.times(side.anchor, system.target)
        side.now = _conjugate(system, side.now, pull, 1 if side.uniform else CONJUGATE)

    def _rows_at_once(self, other: Side) -> int:
        return max(1, _CHUNK // max(1, other.now.numel()))

    def _systems(self, weights: Tensor, other: Side) -> tuple[Tensor, Tensor]:
        """For each row of weights F: s^2 X^T F X of the other factor X, and the same with its anchor on the left."""
        x, kept = other.along(other.now), weights[:, None, : len(other.along(other.now))]
        anchor = other.along(other.anchor)
        found = [(t.mT * kept) @ x for t in (x, anchor)]
        if weights.shape[1] > len(x):
            rest = [t.mT @ other.now - s.mT @ x for t, s in ((other.now, x), (other.anchor, anchor))]
            found = [f + weights[:, -1, None, None] * r for f, r in zip(found, rest)]
        return self.scale**2 * found[0], self.scale**2 * found[1]

    def _roots(self) -> Tensor:
        out, into = self.basis.counts()
        return (out.sqrt()[:, None] * into.sqrt()).to(self.values)


def _each(rows: Tensor, matrices: Tensor) -> Tensor:
    """Each row times a matrix of its own."""
    return (rows[:, None] @ matrices)[:, 0]


def _inverse(systems: Tensor, metric: Tensor) -> Map:
    """(diag(metric_j) + system_j)^-1 for each row j; in units of the metric all eigenvalues are at least one."""
    root = metric.rsqrt()
    scaled = systems * root[:, :, None] * root[:, None]
    scaled.diagonal(dim1=-2, dim2=-1).add_(1.0)
    factor = torch.linalg.cholesky_ex(scaled)[0]
    return lambda rows: root * torch.cholesky_solve((root * rows)[..., None], factor)[..., 0]


class _Rotated:
    """The system of a factor whose side has directions, and its inverse for the diagonal part of the metric."""

    def __init__(self, side: Side, systems: Tensor, target: Tensor) -> None:
        assert side.u is not None
        assert side.metric is not None
        self.u, self.metric, self.systems, self.target = side.u, side.metric, systems, target
        n, kept = side.u.shape
        seen = side.u.square().mT @ side.metric
        self._kept = _inverse(systems[:kept], seen)
        self._rest: Tensor | None = None
        if kept < n:
            rest = ((side.metric.sum(0) - seen.sum(0)) / (n - kept)).clamp(min=0) + 1e-6 * side.metric.mean(0)
            eye = torch.eye(len(rest)).to(rest)
            self._rest = _inverse(systems[kept:].expand(len(rest), -1, -1), rest.expand_as(eye))(eye)

    def times(self, rows: Tensor, matrices: Tensor) -> Tensor:
        """Each direction times its own matrix, and the directions left out times the last one."""
        along, kept = self.u.mT @ rows, self.u.shape[1]
        found = self.u @ _each(along, matrices[:kept])
        return found if self._rest is None else found + (rows - self.u @ along) @ matrices[kept]

    def __call__(self, rows: Tensor) -> Tensor:
        return self.metric * rows + self.times(rows, self.systems)

    def inverse(self, rows: Tensor) -> Tensor:
        along = self.u.mT @ rows
        found = self.u @ self._kept(along)
        return found if self._rest is None else found + (rows - self.u @ along) @ self._rest


def _conjugate(system: _Rotated, x: Tensor, target: Tensor, steps: int) -> Tensor:
    """Preconditioned conjugate gradients from x; if the inverse is exact, one step gives the solution."""
    residual = target - system(x)
    z = system.inverse(residual)
    direction, size = z, (residual * z).sum()
    least = torch.finfo(x.dtype).tiny
    for _ in range(steps):
        image = system(direction)
        length = size / (direction * image).sum().clamp(min=least)
        x, residual = x + length * direction, residual - length * image
        z = system.inverse(residual)
        size, before = (residual * z).sum(), size
        direction = z + size / before.clamp(min=least) * direction
    return x
