"""The importance of each direction: mean squared gradients along it (EK-FAC: George, Laurent, Bouthillier, Ballas,
Vincent 2018). For directions that a basis leaves out it has sums of squares by row, by column and of the rest.

A sample's gradient is D^T A for its derivatives D, one row per position, and its inputs A. Its square along a direction
comes from D^T A itself or from the rotated rows D V and A U, whichever is less work. Directions left out need no
rotation: the squared length of v^T D^T A is e^T (A A^T) e with e = D v.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from drcl.directions.basis import Eigenbasis, as_matrix
from drcl.directions.factors import Reader
from drcl.per_sample.layers import chunk_length, conv_weight_gradient

__all__ = ["Eigenvalues"]


class Eigenvalues(Reader):
    """One layer's sums of squared per-sample gradients along each direction of a basis, and over what it leaves out.

    With `together` above one, this many samples are added up with random signs before they are squared. The expected
    square of such a sum is the sum of the squares, so the estimate stays unbiased and needs fewer rotations.
    """

    def __init__(self, module: nn.Module, basis: Eigenbasis, samples: int, together: int = 1, seed: int = 0) -> None:
        """`samples` is the number of samples that will be added."""
        super().__init__(module, basis.bias, basis.eigenvalues.shape[1] > 1)
        self.basis, self.samples, self.together = basis, samples, together
        self.total = torch.zeros_like(basis.eigenvalues)
        self._rng = np.random.default_rng([seed, 3])

    def means(self) -> Tensor:
        """The mean square of each direction, in the shape of the basis's eigenvalues."""
        out, into = self.basis.counts()
        return self.total / (self.samples * out[:, None] * into)

    def trace(self) -> float:
        """The mean square of whole gradients: over all directions, including those left out."""
        return float(self.total.double().sum()) / self.samples

    def add(self, x: Tensor, d: Tensor, inputs: bool = True) -> None:
        """Inputs and derivatives of a batch; the same inputs may come again, with other derivatives."""
        x, d = (t.to(self.total.dtype) for t in (x, d))
        if self.together == 1:
            self._add(x, d)
            return
        signs = torch.from_numpy(self._rng.choice((-1.0, 1.0), len(d))).to(d)
        d = d * signs.view(-1, *[1] * (d.ndim - 1))
        whole = len(d) - len(d) % self.together
        for part in (slice(0, whole), slice(whole, len(d))):
            if len(d[part]):
                # Several samples added up are the same as one sample with all their rows.
                rows = -1, min(self.together, len(d[part])), d.shape[1]
                self._add(*(t[part].unflatten(0, rows[:2]).flatten(1, 2) for t in (x, d)))

    def _add(self, x: Tensor, d: Tensor) -> None:
        at = self.places(d)
        if at > 1 and self.convolution and not self._thin(at):
            step = 8 * chunk_length(self.groups * self.positions * self.outputs * self.inputs, d.device)
            for start in range(0, len(d), step):
                part = slice(start, start + step)
                self._add_gradients(self._gradients(x[part], d[part]))
            return
        for a, e in self.rows(x, d):
            if at == 1:
                self._add_products(a, e)
            elif self._thin(at):
                self._add_rows(a, e)
            else:
                self._add_gradients(e[:, :, None].mT @ a)

    def _thin(self, at: int) -> bool:
        """Whether it is less work to rotate rows than the gradient they add up to."""
        (j, k), (m, n), s = self.basis.kept, self.basis.size, self.positions
        rows = at * (s * n * k + m * j + s * j * k)
        if k < n:
            rows += at * at * s * (n + j)
        if j < m:
            rows += at * at * (m + s * k)
        turned = min(m * n * k + j * m * k, j * m * n + j * n * k)
        if k < n and j < m:
            turned = j * m * n + m * n * k + min(j * m * k, j * n * k)
        return rows <= s * (at * m * n + turned)

    def _add_products(self, a: Tensor, d: Tensor) -> None:
        """For samples with one position each, whose gradients are products."""
        u, v = self.basis.inputs, self.basis.outputs
        right = _squares(a[:, :, :, 0], None if u is None else u[:, None])
        left = _squares(d[:, :, 0, None], None if v is None else v[:, None])[:, :, 0]
        self.total.add_(torch.einsum("bgj,bgsk->gsjk", left, right))

    def _add_rows(self, a: Tensor, d: Tensor) -> None:
        """a is [samples, groups, kernel positions, positions, n], d [samples, groups, positions, m]."""
        u, v = self.basis.inputs, self.basis.outputs
        d = d[:, :, None]
        f, e = (a if u is None else a @ u[:, None]), (d if v is None else d @ v[:, None])
        kept = (e.mT @ f).square().sum(0)
        rows = columns = everything = None
        (j, k), (m, n) = self.basis.kept, self.basis.size
        inside = a @ a.mT if k < n else None
        outside = d @ d.mT if j < m else None
        if inside is not None:
            rows = (e * (inside @ e)).sum((0, -2))
        if outside is not None:
            columns = (f * (outside @ f)).sum((0, -2))
        if inside is not None and outside is not None:
            everything = (inside * outside).sum((0, -2, -1))
        self._add_sums(kept, rows, columns, everything)

    def _gradients(self, x: Tensor, d: Tensor) -> Tensor:
        """A convolution's gradients, [samples, groups, kernel positions, m, n], without making patches."""
        gradient = conv_weight_gradient(self.module)
        found = torch.stack([as_matrix(gradient(one, back), self.groups, self.positions) for one, back in zip(x, d)])
        if not self.bias:
            return found
        constant = d.sum([i for i in range(1, d.ndim) if i != 2]).view(len(d), self.groups, 1, -1, 1)
        return torch.cat([found, constant], -1)

    def _add_gradients(self, g: Tensor) -> None:
        """g is [samples, groups, kernel positions, m, n]."""
        u, v = self.basis.sides()
        (j, k), (m, n) = self.basis.kept, self.basis.size
        first = j * m * n + j * n * k < m * n * k + j * m * k
        across = (g if v is None else v.mT @ g) if k < n or (j == m and first) else None
        down = (g if u is None else g @ u) if j < m or across is None else None
        if across is not None and (down is None or n < m):
            kept = across if u is None else across @ u
        else:
            assert down is not None
            kept = down if v is None else v.mT @ down
        rows = across.square().sum((0, -1)) if across is not None and k < n else None
        columns = down.square().sum((0, -2)) if down is not None and j < m else None
        everything = g.square().sum((0, -2, -1)) if k < n and j < m else None
        self._add_sums(kept.square().sum(0), rows, columns, everything)

    def _add_sums(self, kept: Tensor, rows: Tensor | None, columns: Tensor | None, everything: Tensor | None) -> None:
        """Squares along kept directions, total squares along each kept output or input, and of whole gradients."""
        j, k = self.basis.kept
        self.total[..., :j, :k] += kept
        if rows is not None:
            rows = rows - kept.sum(-1)
            self.total[..., :j, k] += rows.clamp(min=0)
        if columns is not None:
            columns = columns - kept.sum(-2)
            self.total[..., j, :k] += columns.clamp(min=0)
        if everything is not None and rows is not None and columns is not None:
            tail = everything - kept.sum((-2, -1)) - rows.sum(-1) - columns.sum(-1)
            self.total[..., j, k] += tail.clamp_(min=0)


def _squares(x: Tensor, directions: Tensor | None) -> Tensor:
    """The squares of [..., n] along each direction, and of the rest if directions are left out."""
    if directions is None:
        return x.square()
    # [samples, groups, positions, n]: one product for all samples of a group
    along = (x.transpose(0, 2) @ directions.transpose(0, 1)).transpose(0, 2).square()
    if directions.shape[-2] == directions.shape[-1]:
        return along
    left_out = (x.square().sum(-1, keepdim=True) - along.sum(-1, keepdim=True)).clamp_(min=0)
    return torch.cat([along, left_out], -1)
