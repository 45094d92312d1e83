"""Dropout, max-pooling and ReLU in one pass over memory (pooling.c), where a convolutional network has them in a row.

On a CPU these three layers take as long as a convolution, because each reads and writes the largest arrays of the
network. The result is the same, value by value; so are the dropout masks. Whatever the C code does not cover goes
through the layers themselves: another type, memory layout or device, layers with hooks, torch.func and torch.compile,
or a machine without a C compiler.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from drcl import compiled
from drcl.lab.networks.dropout import Dropout

SOURCE = Path(__file__).with_name("pooling.c")
_LAST = torch.channels_last


def through(layers: Sequence[nn.Module], x: Tensor) -> Tensor:
    """`x` through all layers, in order."""
    at = 0
    while at < len(layers):
        some = layers[at : at + 3]
        if _fits(some, x):
            assert isinstance(some[0], Dropout)
            x, at = _Pooled.apply(x, some[0]), at + 3
        else:
            x, at = some[0](x), at + 1
    return x


@functools.cache
def _load() -> ctypes.CDLL | None:
    """The compiled code, or None without a C compiler; the optimizer's fused step warns of that."""
    try:
        return compiled.library(SOURCE, _prepared)
    except compiled.FAILURES:
        return None


def _prepared(library: ctypes.CDLL) -> ctypes.CDLL:
    sizes: list[Any] = [ctypes.c_int32, *[ctypes.c_int64] * 4]
    pointer = ctypes.c_void_p
    library.drcl_pool.argtypes = [*sizes, pointer, pointer, ctypes.c_int32, ctypes.c_float, pointer, pointer]
    library.drcl_unpool.argtypes = [*sizes, pointer, pointer, ctypes.c_float, pointer]
    library.drcl_pool.restype = library.drcl_unpool.restype = None
    return library


def _fits(layers: Sequence[nn.Module], x: Tensor) -> bool:
    if len(layers) < 3 or not isinstance(layers[0], Dropout) or layers[0].p >= 1:
        return False
    if not _halves(layers[1]) or type(layers[2]) is not nn.ReLU or any(_hooked(layer) for layer in layers):
        return False
    if type(x) is not Tensor or not x.is_cpu or x.dtype is not torch.float32 or x.dim() != 4 or min(x.shape[2:]) < 2:
        return False
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return False
    return x.is_contiguous(memory_format=_LAST) and _load() is not None


def _halves(layer: nn.Module) -> bool:
    if type(layer) is not nn.MaxPool2d or layer.ceil_mode or layer.return_indices:
        return False
    return [layer.kernel_size, layer.stride, layer.padding, layer.dilation] == [2, 2, 0, 1]


def _hooked(layer: nn.Module) -> bool:
    return bool(layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks)


class _Pooled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dropout: Dropout) -> Tensor:
        library = _load()
        assert library is not None
        n, c, h, w = x.shape
        drops = dropout.training and dropout.p > 0
        bits = dropout.bits(x.numel()) if drops else None
        out = torch.empty((n, c, h // 2, w // 2), memory_format=_LAST)
        which = torch.empty(out.numel(), dtype=torch.int32)
        scale = dropout.scale if drops else 1.0
        library.drcl_pool(
            *(torch.get_num_threads(), n, h, w, c, x.data_ptr(), None if bits is None else bits.data_ptr()),
            *(dropout.least, scale, out.data_ptr(), which.data_ptr()),
        )
        ctx.save_for_backward(which)
        ctx.shape, ctx.scale = x.shape, scale
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        (which,) = ctx.saved_tensors
        n, c, h, w = ctx.shape
        if torch.is_grad_enabled() or g.dtype is not torch.float32 or type(g) is not Tensor:
            return _unpooled(g, which, ctx.shape, ctx.scale), None
        library = _load()
        assert library is not None
        g = g.contiguous(memory_format=_LAST)
        out = torch.empty(ctx.shape, memory_format=_LAST)
        library.drcl_unpool(
            *(torch.get_num_threads(), n, h, w, c, g.data_ptr(), which.data_ptr(), ctx.scale, out.data_ptr())
        )
        return out, None


def _unpooled(g: Tensor, which: Tensor, shape: torch.Size, scale: float) -> Tensor:
    """The same by torch operations, so that the gradient has a gradient."""
    n, c, h, w = shape
    places = which.view(n, h // 2, w // 2, c).permute(0, 3, 1, 2)
    out = g.new_zeros(shape)
    for k in range(4):
        out[:, :, k // 2 : h - h % 2 : 2, k % 2 : w - w % 2 : 2] = g * scale * (places == k)
    return out
