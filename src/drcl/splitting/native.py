"""Calls step.c, the fused step for CPU tensors.

The first use compiles it (about a second). Without a compiler `load` returns None and warns once, and kernels.py uses
torch operations instead.
"""

from __future__ import annotations

import ctypes
import functools
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from drcl import compiled

SOURCE = Path(__file__).with_name("step.c")
PLAIN = (Tensor, torch.nn.Parameter)
SUFFIX = {torch.float32: "f32", torch.float64: "f64"}


class Hyper(ctypes.Structure):
    """Mirror of `hyper` in step.c."""

    _fields_ = [
        *[(name, ctypes.c_double) for name in ("lr", "momentum", "decay", "fresh", "c", "mix", "damping")],
        *[(name, ctypes.c_int32) for name in ("nesterov", "maximize", "reflect")],
    ]


def _prepared(library: ctypes.CDLL) -> ctypes.CDLL:
    for suffix in SUFFIX.values():
        getattr(library, f"drcl_step_{suffix}").restype = None
        getattr(library, f"drcl_finite_{suffix}").restype = ctypes.c_int64
    return library


@functools.cache
def load() -> ctypes.CDLL | None:
    """The compiled kernel, or None with one warning that says why."""
    try:
        return compiled.library(SOURCE, _prepared)
    except compiled.FAILURES as reason:
        warnings.warn(
            f"drcl: the fused step is not available ({reason}); torch operations replace it, several times slower. "
            "Install a C compiler, or pass backend='foreach' to silence this.",
            stacklevel=2,
        )
        return None


def usable(first: Tensor, others: Sequence[Tensor | None] = ()) -> bool:
    """Whether one flat loop can process a parameter's tensors: plain CPU tensors of one float type, shape and layout.

    Every pointer passed to C comes from tensors checked here. A subclass (such as a sharded tensor) is not plain: its
    memory may not match its shape.
    """
    if type(first) not in PLAIN or not first.is_cpu or first.dtype not in SUFFIX or first.layout is not torch.strided:
        return False
    if not (first.is_contiguous() or torch.ops.aten.is_non_overlapping_and_dense(first)):
        return False
    dtype, shape, stride = first.dtype, first.shape, first.stride()
    for t in others:
        if t is None:
            continue
        if type(t) not in PLAIN or t.dtype is not dtype or not t.is_cpu or t.shape != shape or t.stride() != stride:
            return False
    return True


def _pointers(tensors: Sequence[Tensor] | None) -> ctypes.Array[ctypes.c_void_p] | None:
    return (ctypes.c_void_p * len(tensors))(*[t.data_ptr() for t in tensors]) if tensors is not None else None


def _sizes(tensors: Sequence[Tensor]) -> ctypes.Array[ctypes.c_int64]:
    return (ctypes.c_int64 * len(tensors))(*[t.numel() for t in tensors])


def _threads() -> ctypes.c_int32:
    """As many as torch uses: torch.set_num_threads does not reach the kernel's own OpenMP runtime."""
    return ctypes.c_int32(torch.get_num_threads())


def step(
    library: ctypes.CDLL,
    y: Sequence[Tensor],
    g: Sequence[Tensor],
    anchor: Sequence[Tensor],
    importance: Sequence[Tensor],
    z: Sequence[Tensor] | None,
    buffers: Sequence[Tensor] | None,
    hyper: Hyper,
) -> None:
    """Run the fused step over a list of parameters of one dtype, each `usable`."""
    function = getattr(library, f"drcl_step_{SUFFIX[y[0].dtype]}")
    arrays = [_pointers(t) for t in (y, g, anchor, importance, z, buffers)]
    function(_threads(), ctypes.c_int64(len(y)), _sizes(y), *arrays, ctypes.byref(hyper))


def first_non_finite(library: ctypes.CDLL, tensors: Sequence[Tensor]) -> int:
    """Index of the first tensor with a NaN or an infinity, or -1. All must be dense and have one dtype."""
    function = getattr(library, f"drcl_finite_{SUFFIX[tensors[0].dtype]}")
    return int(function(_threads(), ctypes.c_int64(len(tensors)), _sizes(tensors), _pointers(tensors)))
