"""What a layer brings to its Kronecker factors: inputs as rows, convolutions as unfolded patches.

For a layer used at P positions of a sample (pixels, tokens) with inputs a_p and output derivatives d_p, the sample's
gradient is the sum over p of d_p a_p^T. Its second moment is taken to be A times G with A = E[sum of a a^T] and
G = E[mean of d d^T]: exact for one position and one sample, and for more where positions are uncorrelated.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drcl.eigenbasis import Eigenbasis
from drcl.layergrads import Moments, Rule, chunk_length

KINDS = (nn.Linear, nn.Conv1d, nn.Conv2d)


class Reader(Rule):
    """A layer's inputs as [samples, groups, kernel positions, positions, n], derivatives as [samples, groups,
    positions, m]. `apart` keeps the positions of a convolution's kernel apart; `bias` appends the constant one."""

    def __init__(self, module: nn.Module, bias: bool, apart: bool) -> None:
        weight: Any = module.weight
        self.bias = bias
        self.groups = 1 if isinstance(module, nn.Linear) else int(module.groups)  # type: ignore[arg-type]
        self.positions = weight[0, 0].numel() if apart and weight.ndim > 2 else 1
        self.outputs = weight.shape[0] // self.groups
        self.inputs = weight[0].numel() // self.positions + int(bias)

    def add_moments(self, module: Any, x: Tensor, d: Tensor, totals: Moments, power: int) -> None:
        # Patches repeat each pixel once a kernel position: as many samples at a time as a cache will bear.
        size = self.groups * self.positions * self.inputs * max(1, d[0].numel() // (self.groups * self.outputs))
        step = 8 * chunk_length(size, d.device)
        for start in range(0, len(d), step):
            part = slice(start, start + step)
            self.read(self._inputs(module, x[part]), self._derivatives(module, d[part]))

    def read(self, a: Tensor, d: Tensor) -> None:
        raise NotImplementedError

    def _inputs(self, module: Any, x: Tensor) -> Tensor:
        if isinstance(module, nn.Linear):
            a = x.flatten(1, -2)[:, None, None]
        else:
            patches = _unfold(module, x.flatten(0, 1))  # [samples * rows, channels * kernel, positions]
            shape = (len(x), x.shape[1], self.groups, -1, self.positions, patches.shape[-1])
            a = patches.view(shape).permute(0, 2, 4, 1, 5, 3).flatten(3, 4)
        if not self.bias:
            return a
        return torch.cat([a, a.new_ones(*a.shape[:-1], 1)], -1)

    def _derivatives(self, module: Any, d: Tensor) -> Tensor:
        if isinstance(module, nn.Linear):
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
    """Sums A and G. Inputs do not depend on the label, so `fresh` is set once a batch, however many derivatives."""

    def __init__(self, module: nn.Module, bias: bool, apart: bool, rotate: str, largest: int) -> None:
        super().__init__(module, bias, apart)
        weight: Any = module.weight
        wide = torch.float64 if weight.dtype == torch.float64 else torch.float32

        def zeros(n: int, full: bool) -> Tensor:
            return torch.zeros((self.groups, n, n) if full else (self.groups, n), dtype=wide, device=weight.device)

        self.a = zeros(self.inputs, rotate in ("both", "inputs") and self.inputs <= largest)
        self.g = zeros(self.outputs, rotate in ("both", "outputs") and self.outputs <= largest)
        self.samples = 0
        self.fresh = True

    def add_moments(self, module: Any, x: Tensor, d: Tensor, totals: Moments, power: int) -> None:
        super().add_moments(module, x, d, totals, power)
        self.samples += len(d) if self.fresh else 0
        self.fresh = False

    def read(self, a: Tensor, d: Tensor) -> None:
        if self.fresh:
            rows = a.to(self.a.dtype).transpose(0, 1).flatten(1, 3)
            _add_second_moment(self.a, rows, 1 / self.positions)
        _add_second_moment(self.g, d.to(self.g.dtype).transpose(0, 1).flatten(1, 2), 1 / d.shape[2])


def _add_second_moment(total: Tensor, rows: Tensor, scale: float) -> None:
    """rows is [groups, any, n]."""
    if total.ndim == 2:
        total.add_(rows.square().sum(1), alpha=scale)
    else:
        total.baddbmm_(rows.mT, rows, alpha=scale)


class Eigenvalues(Reader):
    """Sums the squares of the per-sample gradients along each direction of a basis."""

    def __init__(self, module: nn.Module, basis: Eigenbasis) -> None:
        super().__init__(module, basis.bias, basis.eigenvalues.shape[1] > 1)
        self.basis = basis
        self.total = torch.zeros_like(basis.eigenvalues)
        self.trace = 0.0  # of all directions, those left out too

    def read(self, a: Tensor, d: Tensor) -> None:
        u, v = self.basis.inputs, self.basis.outputs
        a, d = a.to(self.total.dtype), d.to(self.total.dtype)
        at = d.shape[2]
        m, n, j, k = self.outputs, self.inputs, *self.total.shape[2:]
        # Rotating rows, or the gradient they add up to: whichever is less work. With one position always the rows.
        if not self.basis.complete:
            # |sum of d_p a_p^T|^2 = sum over p and q of (d_p . d_q)(a_p . a_q)
            self.trace += float(((d @ d.mT)[:, :, None] * (a @ a.mT)).double().sum())
        rows = at * (n * k * self.positions + m * j + j * k * self.positions)
        if at == 1 or rows <= self.positions * (at * m * n + m * n * k + m * j * k):
            a = a if u is None else a @ u[:, None]
            d = d if v is None else d @ v
            if at == 1:
                left, right = d[:, :, 0].square(), a[:, :, :, 0].square()
                self.total.add_(torch.einsum("bgj,bgsk->gsjk", left, right))
                return
            g = d[:, :, None].mT @ a
        else:
            g = d[:, :, None].mT @ a
            g = g if u is None else g @ u[:, None]
            g = g if v is None else v[:, None].mT @ g
        self.total.add_(g.square().sum(0))
