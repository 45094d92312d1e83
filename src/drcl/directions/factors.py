"""The Kronecker factors of a layer: its inputs as rows, for convolutions unfolded patches.

For a layer used at P positions of a sample (pixels, tokens) with inputs a_p and output derivatives d_p, the sample's
gradient is the sum over p of d_p a_p^T. Its second moment is approximated by A times G with A = E[sum of a a^T] and
G = E[mean of d d^T]. This is exact for one position and one sample, and for more if positions are uncorrelated.

The factors are those of K-FAC (Martens and Grosse 2015; for convolutions Grosse and Martens 2016), and the squared
gradients along their eigenvectors (`drcl.directions.eigenvalues`) are the eigenvalues of EK-FAC (George, Laurent,
Bouthillier, Ballas, Vincent 2018). `drcl.directions.passes` passes the samples to both.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drcl.directions.basis import Eigenbasis, eigenvectors
from drcl.per_sample.layers import chunk_length, is_transposed
from drcl.per_sample.stand_ins import Projection

_KINDS = (nn.Linear, nn.Conv1d, nn.Conv2d, Projection)


def has_directions(module: nn.Module) -> bool:
    """Whether the layer's weight is a linear map whose inputs and outputs are those of the layer."""
    return type(module) in _KINDS or is_transposed(module)


class Reader:
    """A layer's inputs as [samples, groups, kernel positions, positions, n], derivatives as [samples, groups,
    positions, m]. `apart` keeps the positions of a convolution's kernel separate; `bias` appends the constant one.

    A weight that is stored as [inputs, outputs] is read as its transpose: inputs and derivatives change places."""

    def __init__(self, module: nn.Module, bias: bool, apart: bool) -> None:
        weight: Any = module.weight
        self.module, self.bias = module, bias
        self.transposed = is_transposed(module)
        self.convolution = isinstance(module, nn.Conv1d | nn.Conv2d)
        self.groups = int(getattr(module, "groups", 1))
        self.positions = weight[0, 0].numel() if apart and weight.ndim > 2 else 1
        self.outputs = weight.shape[0] // self.groups
        self.inputs = weight[0].numel() // self.positions + int(bias)

    def places(self, d: Tensor) -> int:
        """The number of positions of a sample at which the layer is used."""
        return max(1, d[0].numel() // (self.inputs if self.transposed else self.groups * self.outputs))

    def rows(
        self, x: Tensor, d: Tensor, at: Tensor | None = None, behind: Tensor | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """The inputs and derivatives that a visitor gets, in these shapes, some samples at a time. If given, only the
        positions `at` of the inputs and `behind` of the derivatives, each [samples, some]."""
        # Patches repeat each pixel once per kernel position, so take only as many samples as fit into the cache.
        size = self.groups * self.positions * self.inputs * (self.places(d) if at is None else at.shape[1])
        step = 8 * chunk_length(size, d.device)
        for start in range(0, len(d), step):
            part = slice(start, start + step)
            a, e = (d[part], x[part]) if self.transposed else (x[part], d[part])
            some, few = (t if t is None else t[part] for t in (at, behind))
            derivatives = self._derivatives(e)
            yield self._inputs(a, some), derivatives if few is None else _picked(derivatives, few)

    def _inputs(self, x: Tensor, at: Tensor | None = None) -> Tensor:
        if not self.convolution:
            a = self._blocks(x)
            a = (a if at is None else _picked(a, at))[:, :, None]
        elif at is not None:
            patches = patches_at(self.module, x, at).flatten(3)  # [samples, positions, channels, kernel]
            a = patches.reshape(*patches.shape[:2], self.groups, -1, self.positions).permute(0, 2, 4, 1, 3)
        else:
            patches = _unfold(self.module, x.flatten(0, 1))  # [samples * rows, channels * kernel, positions]
            shape = (len(x), x.shape[1], self.groups, -1, self.positions, patches.shape[-1])
            a = patches.view(shape).permute(0, 2, 4, 1, 5, 3).flatten(3, 4)
        if not self.bias:
            return a
        return torch.cat([a, a.new_ones(*a.shape[:-1], 1)], -1)

    def _derivatives(self, d: Tensor) -> Tensor:
        if not self.convolution:
            return self._blocks(d)
        return d.flatten(3).unflatten(2, (self.groups, -1)).permute(0, 2, 1, 4, 3).flatten(2, 3)

    def _blocks(self, x: Tensor) -> Tensor:
        """Rows of a linear map, [samples, groups, positions, n]."""
        x = x.flatten(1, -2)
        return x[:, None] if self.groups == 1 else x.unflatten(-1, (self.groups, -1)).transpose(1, 2)


def _unfold(module: Any, x: Tensor) -> Tensor:
    if isinstance(module.padding, str) or module.padding_mode != "zeros":
        x = _padded(module, x)
        padding: tuple[int, ...] = (0,) * len(module.stride)
    else:
        padding = module.padding
    kernel, stride, dilation = module.kernel_size, module.stride, module.dilation
    if x.ndim == 3:
        x, kernel, stride = x.unsqueeze(2), (1, *kernel), (1, *stride)
        padding, dilation = (0, *padding), (1, *dilation)
    return F.unfold(x, kernel, dilation, padding, stride)


def _padded(module: Any, x: Tensor) -> Tensor:
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    return F.pad(x, module._reversed_padding_repeated_twice, mode=mode)


def patches_at(module: Any, x: Tensor, at: Tensor) -> Tensor:
    """Only these patches of [samples, rows, channels, ...]: [samples, positions, channels, kernel height, width]."""
    samples, rows = x.shape[:2]
    whole = _padded(module, x.flatten(0, 1))
    kernel, stride, dilation = module.kernel_size, module.stride, module.dilation
    if whole.ndim == 3:
        whole, kernel, stride, dilation = whole.unsqueeze(2), (1, *kernel), (1, *stride), (1, *dilation)
    whole = whole.unflatten(0, (samples, rows))
    sides = [(n - w * (k - 1) - 1) // s + 1 for n, k, s, w in zip(whole.shape[3:], kernel, stride, dilation)]
    steps, last = whole.stride(), whole.stride()[3:]
    view = whole.as_strided(
        (*whole.shape[:3], *sides, *kernel),
        (*steps[:3], *(t * s for t, s in zip(last, stride)), *(t * w for t, w in zip(last, dilation))),
    )
    row, place = at // (sides[0] * sides[1]), at % (sides[0] * sides[1])
    which = torch.arange(samples, device=x.device)[:, None]
    return view[which, row, :, place // sides[1], place % sides[1]]


def _picked(rows: Tensor, at: Tensor) -> Tensor:
    """Some positions of each sample of [samples, groups, positions, n]."""
    return rows.transpose(1, 2)[torch.arange(len(at), device=at.device)[:, None], at].transpose(1, 2)


class Factors(Reader):
    """One layer's sums A and G.

    With `few` they are estimated from this many positions per sample, the first number for A and the second for G.
    If there are more than 1.5 times as many positions, one is drawn from each of as many equal stretches. The sum over
    them, times the ratio of all positions to drawn ones, is on average the sum over all.
    """

    def __init__(
        self,
        module: nn.Module,
        bias: bool,
        apart: bool,
        largest: int,
        rotated: tuple[bool, bool] = (True, True),
        few: tuple[int, int] | None = None,
        seed: int = 0,
    ) -> None:
        """`rotated` says whether inputs and outputs are rotated; a side longer than `largest` never is."""
        super().__init__(module, bias, apart)
        self.few, self._rng = few, np.random.default_rng([seed, 2])
        weight: Any = module.weight
        wide = torch.float64 if weight.dtype == torch.float64 else torch.float32

        def zeros(n: int, full: bool) -> Tensor:
            return torch.zeros((self.groups, n, n) if full else (self.groups, n), dtype=wide, device=weight.device)

        self.a = zeros(self.inputs, rotated[0] and self.inputs <= largest)
        self.g = zeros(self.outputs, rotated[1] and self.outputs <= largest)
        self.samples = 0

    def add(self, x: Tensor, d: Tensor, inputs: bool) -> None:
        """The derivatives of a batch, and its inputs if they are wanted too."""
        self.samples += len(d) if inputs else 0
        places = self.places(d)
        at, behind = (self._draw(places, k, d) for k in (0, 1))
        scale = 1.0 if at is None else places / at.shape[1]
        for a, e in self.rows(x, d, at, behind):
            if inputs or self.transposed:
                _add_second_moment(self.a, a.to(self.a.dtype).transpose(0, 1).flatten(1, 3), scale / self.positions)
            if inputs or not self.transposed:
                _add_second_moment(self.g, e.to(self.g.dtype).transpose(0, 1).flatten(1, 2), 1 / e.shape[2])

    def _draw(self, places: int, side: int, d: Tensor) -> Tensor | None:
        if self.few is None or 2 * places <= 3 * self.few[side]:
            return None
        few = self.few[side]
        drawn = (np.arange(few) + self._rng.random((len(d), few))) * (places / few)
        return torch.from_numpy(np.minimum(drawn.astype(np.int64), places - 1)).to(d.device)

    def trace(self) -> float:
        """The importance of all directions together, according to the product of the factors."""
        return self.product(*self.traces())

    def traces(self) -> tuple[Tensor, Tensor]:
        """The traces of A and of G, [groups, 1]."""
        return _trace(self.a), _trace(self.g)

    def product(self, a: Tensor, g: Tensor) -> float:
        """The importance that follows from two traces."""
        return float((a * g).double().sum()) * self.positions


def _add_second_moment(total: Tensor, rows: Tensor, scale: float) -> None:
    """rows is [groups, any, n]."""
    if total.ndim == 2:
        total.add_(rows.square().sum(1), alpha=scale)
    else:
        total.baddbmm_(rows.mT, rows, alpha=scale)


def basis_of(
    a: Tensor,
    g: Tensor,
    rank: int | None,
    positions: int,
    bias: bool,
    count: float,
    start: tuple[Tensor | None, Tensor | None] = (None, None),
    output_rank: int | None = None,
) -> Eigenbasis:
    """The eigenvectors of both factors, each direction with the product of their eigenvalues.

    For long sides the search begins with `start`, the directions of earlier tasks, if there are any.

    The product of factors summed over `count` tasks has count squared terms; divided by count it grows like a sum.
    """
    u = eigenvectors(a, rank, start[0]) if a.ndim == 3 else None
    v = eigenvectors(g, rank, start[1], output_rank) if g.ndim == 3 else None
    inputs, outputs = _along(a, u), _along(g, v)
    values = (outputs[:, None, :, None] * inputs[:, None, None, :] / count).clamp_(min=0)
    values = values.expand(-1, positions, -1, -1).contiguous()
    return Eigenbasis(u, v, values, a, g, bias, count)


def _along(factor: Tensor, directions: Tensor | None) -> Tensor:
    """u^T factor u for every direction u, and its mean over directions left out if there are any."""
    if directions is None:
        return factor
    along, (n, kept) = (directions * (factor @ directions)).sum(1), directions.shape[1:]
    if kept == n:
        return along
    return torch.cat([along, (_trace(factor) - along.sum(-1, keepdim=True)).clamp_(min=0) / (n - kept)], -1)


def _trace(factor: Tensor) -> Tensor:
    diagonal = factor if factor.ndim == 2 else factor.diagonal(dim1=-2, dim2=-1)
    return diagonal.sum(-1, keepdim=True)
