"""What a layer brings to its Kronecker factors: inputs as rows, convolutions as unfolded patches.

For a layer used at P positions of a sample (pixels, tokens) with inputs a_p and output derivatives d_p, the sample's
gradient is the sum over p of d_p a_p^T. Its second moment is taken to be A times G with A = E[sum of a a^T] and
G = E[mean of d d^T]: exact for one position and one sample, and for more where positions are uncorrelated.

The factors are those of K-FAC (Martens and Grosse 2015; of convolutions Grosse and Martens 2016), the squares of
gradients along their eigenvectors the eigenvalues of EK-FAC (George, Laurent, Bouthillier, Ballas, Vincent 2018).
`drcl.directions.passes` shows the samples to both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drcl.directions.basis import Eigenbasis, eigenvectors
from drcl.per_sample.hooks import Visitor
from drcl.per_sample.layers import chunk_length

KINDS = (nn.Linear, nn.Conv1d, nn.Conv2d)


class Reader:
    """A layer's inputs as [samples, groups, kernel positions, positions, n], derivatives as [samples, groups,
    positions, m]. `apart` keeps the positions of a convolution's kernel apart; `bias` appends the constant one."""

    def __init__(self, module: nn.Module, bias: bool, apart: bool) -> None:
        weight: Any = module.weight
        self.module, self.bias = module, bias
        self.groups = 1 if isinstance(module, nn.Linear) else int(module.groups)  # type: ignore[arg-type]
        self.positions = weight[0, 0].numel() if apart and weight.ndim > 2 else 1
        self.outputs = weight.shape[0] // self.groups
        self.inputs = weight[0].numel() // self.positions + int(bias)

    def rows(self, x: Tensor, d: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """What a visitor is shown of the layer, in these shapes and some samples at a time."""
        # Patches repeat each pixel once a kernel position: as many samples at a time as a cache will bear.
        size = self.groups * self.positions * self.inputs * max(1, d[0].numel() // (self.groups * self.outputs))
        step = 8 * chunk_length(size, d.device)
        for start in range(0, len(d), step):
            part = slice(start, start + step)
            yield self._inputs(x[part]), self._derivatives(d[part])

    def _inputs(self, x: Tensor) -> Tensor:
        if isinstance(self.module, nn.Linear):
            a = x.flatten(1, -2)[:, None, None]
        else:
            patches = _unfold(self.module, x.flatten(0, 1))  # [samples * rows, channels * kernel, positions]
            shape = (len(x), x.shape[1], self.groups, -1, self.positions, patches.shape[-1])
            a = patches.view(shape).permute(0, 2, 4, 1, 5, 3).flatten(3, 4)
        if not self.bias:
            return a
        return torch.cat([a, a.new_ones(*a.shape[:-1], 1)], -1)

    def _derivatives(self, d: Tensor) -> Tensor:
        if isinstance(self.module, nn.Linear):
            return d.flatten(1, -2)[:, None]
        return d.flatten(3).unflatten(2, (self.groups, -1)).permute(0, 2, 1, 4, 3).flatten(2, 3)


def _unfold(module: Any, x: Tensor) -> Tensor:
    if isinstance(module.padding, str) or module.padding_mode != "zeros":
        mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
        x = F.pad(x, module._reversed_padding_repeated_twice, mode=mode)
        padding: tuple[int, ...] = (0,) * len(module.stride)
    else:
        padding = module.padding
    kernel, stride, dilation = module.kernel_size, module.stride, module.dilation
    if x.ndim == 3:
        x, kernel, stride = x.unsqueeze(2), (1, *kernel), (1, *stride)
        padding, dilation = (0, *padding), (1, *dilation)
    return F.unfold(x, kernel, dilation, padding, stride)


class Factors(Reader):
    """One layer's sums A and G."""

    def __init__(self, module: nn.Module, bias: bool, apart: bool, largest: int) -> None:
        super().__init__(module, bias, apart)
        weight: Any = module.weight
        wide = torch.float64 if weight.dtype == torch.float64 else torch.float32

        def zeros(n: int, full: bool) -> Tensor:
            return torch.zeros((self.groups, n, n) if full else (self.groups, n), dtype=wide, device=weight.device)

        self.a = zeros(self.inputs, self.inputs <= largest)
        self.g = zeros(self.outputs, self.outputs <= largest)
        self.samples = 0

    def add(self, x: Tensor, d: Tensor, inputs: bool) -> None:
        """The derivatives of a batch, and its inputs if they are wanted too."""
        self.samples += len(d) if inputs else 0
        for a, e in self.rows(x, d):
            if inputs:
                _add_second_moment(self.a, a.to(self.a.dtype).transpose(0, 1).flatten(1, 3), 1 / self.positions)
            _add_second_moment(self.g, e.to(self.g.dtype).transpose(0, 1).flatten(1, 2), 1 / e.shape[2])

    def trace(self) -> float:
        """The importance of all directions together, as the product of the factors has it."""
        return float((_trace(self.a) * _trace(self.g)).double().sum()) * self.positions


class FactorVisitor(Visitor):
    """Shows one batch to the factors of its layers. Inputs do not depend on the label: they count once a batch."""

    def __init__(self, factors: Iterable[Factors]) -> None:
        self.factors = {f.module: f for f in factors}
        self._seen: set[nn.Module] = set()

    def __call__(self, module: nn.Module, x: Tensor, d: Tensor) -> None:
        self.factors[module].add(x, d, inputs=module not in self._seen)
        self._seen.add(module)


def _add_second_moment(total: Tensor, rows: Tensor, scale: float) -> None:
    """rows is [groups, any, n]."""
    if total.ndim == 2:
        total.add_(rows.square().sum(1), alpha=scale)
    else:
        total.baddbmm_(rows.mT, rows, alpha=scale)


class Eigenvalues(Reader):
    """One layer's sums of squared per-sample gradients along each direction of a basis, and over what it leaves out."""

    def __init__(self, module: nn.Module, basis: Eigenbasis) -> None:
        super().__init__(module, basis.bias, basis.eigenvalues.shape[1] > 1)
        self.basis = basis
        self.total = torch.zeros_like(basis.eigenvalues)

    def means(self, samples: int) -> Tensor:
        """The mean square a direction, in the shape of the basis's eigenvalues."""
        out, into = self.basis.counts()
        return self.total / (samples * out[:, None] * into)

    def trace(self) -> float:
        """Over all directions, those left out too."""
        return float(self.total.double().sum())

    def add(self, x: Tensor, d: Tensor) -> None:
        for a, e in self.rows(x, d):
            self._add(a, e)

    def _add(self, a: Tensor, d: Tensor) -> None:
        u, v = self.basis.inputs, self.basis.outputs
        a, d = a.to(self.total.dtype), d.to(self.total.dtype)
        at = d.shape[2]
        if at == 1:
            right = _squares(a[:, :, :, 0], None if u is None else u[:, None])
            left = _squares(d[:, :, 0, None], None if v is None else v[:, None])[:, :, 0]
            self.total.add_(torch.einsum("bgj,bgsk->gsjk", left, right))
            return
        m, n, j, k = self.outputs, self.inputs, *self.basis.kept
        if not self.basis.complete:
            self._add_gradients(d[:, :, None].mT @ a)
            return
        # Rotating rows, or the gradient they add up to: whichever is less work.
        rows = at * (n * k * self.positions + m * j + j * k * self.positions)
        if rows <= self.positions * (at * m * n + m * n * k + m * j * k):
            a = a if u is None else a @ u[:, None]
            d = d if v is None else d @ v
            g = d[:, :, None].mT @ a
        else:
            g = d[:, :, None].mT @ a
            g = g if u is None else g @ u[:, None]
            g = g if v is None else v[:, None].mT @ g
        self.total.add_(g.square().sum(0))

    def _add_gradients(self, g: Tensor) -> None:
        """Of a basis that leaves directions out; g is [samples, groups, kernel positions, m, n]."""
        u, v = self.basis.sides()
        across = g if v is None else v.mT @ g
        down = g if u is None else g @ u
        kept = (across if u is None else across @ u).square().sum(0)
        rows = across.square().sum((0, -1)) - kept.sum(-1)
        columns = down.square().sum((0, -2)) - kept.sum(-2)
        tail = g.square().sum((0, -2, -1)) - kept.sum((-2, -1)) - rows.sum(-1) - columns.sum(-1)
        (j, k), (m, n) = self.basis.kept, self.basis.size
        self.total[..., :j, :k] += kept
        if k < n:
            self.total[..., :j, k] += rows.clamp_(min=0)
        if j < m:
            self.total[..., j, :k] += columns.clamp_(min=0)
        if k < n and j < m:
            self.total[..., j, k] += tail.clamp_(min=0)


class EigenvalueVisitor(Visitor):
    """Shows one batch to the eigenvalues of its layers."""

    def __init__(self, eigenvalues: Iterable[Eigenvalues]) -> None:
        self.eigenvalues = {e.module: e for e in eigenvalues}

    def __call__(self, module: nn.Module, x: Tensor, d: Tensor) -> None:
        self.eigenvalues[module].add(x, d)


def basis_of(a: Tensor, g: Tensor, rank: int | None, positions: int, bias: bool, count: float) -> Eigenbasis:
    """The eigenvectors of both factors, each direction with the product of their eigenvalues.

    Factors summed over `count` tasks have a product of count squared terms: divided by count it grows as a sum does.
    """
    u = eigenvectors(a, rank) if a.ndim == 3 else None
    v = eigenvectors(g, rank) if g.ndim == 3 else None
    inputs, outputs = _along(a, u), _along(g, v)
    values = (outputs[:, None, :, None] * inputs[:, None, None, :] / count).clamp_(min=0)
    values = values.expand(-1, positions, -1, -1).contiguous()
    return Eigenbasis(u, v, values, a, g, bias, count)


def _along(factor: Tensor, directions: Tensor | None) -> Tensor:
    """u^T factor u for every direction u, and its mean over what they leave out if they do."""
    if directions is None:
        return factor
    along, (n, kept) = (directions * (factor @ directions)).sum(1), directions.shape[1:]
    if kept == n:
        return along
    return torch.cat([along, (_trace(factor) - along.sum(-1, keepdim=True)).clamp_(min=0) / (n - kept)], -1)


def _trace(factor: Tensor) -> Tensor:
    diagonal = factor if factor.ndim == 2 else factor.diagonal(dim1=-2, dim2=-1)
    return diagonal.sum(-1, keepdim=True)


def _squares(x: Tensor, directions: Tensor | None) -> Tensor:
    """The squares of [..., n] along each direction, and where these are not all, of what they leave out."""
    if directions is None:
        return x.square()
    # [samples, groups, positions, n]: one product for all samples of a group
    along = (x.transpose(0, 2) @ directions.transpose(0, 1)).transpose(0, 2).square()
    if directions.shape[-2] == directions.shape[-1]:
        return along
    left_out = (x.square().sum(-1, keepdim=True) - along.sum(-1, keepdim=True)).clamp_(min=0)
    return torch.cat([along, left_out], -1)
