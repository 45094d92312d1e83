"""Builds and calls step.c, the fused step for CPU tensors.

The first use compiles it with the system's C compiler (about a second) into the user's cache folder; later uses load
that file. Without a compiler `load` returns None and warns once, and kernels.py uses torch operations instead.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

SOURCE = Path(__file__).with_name("step.c")
# No fast-math: step.c relies on NaN comparisons and on separate rounding of each operation.
FLAGS = [
    "-O3",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-strict-aliasing",
    "-shared",
    "-fPIC",
]
PLAIN = (Tensor, torch.nn.Parameter)
SUFFIX = {torch.float32: "f32", torch.float64: "f64"}


class Hyper(ctypes.Structure):
    """Mirror of `hyper` in step.c."""

    _fields_ = [
        *[(name, ctypes.c_double) for name in ("lr", "momentum", "decay", "fresh", "c", "mix", "damping")],
        *[(name, ctypes.c_int32) for name in ("nesterov", "maximize", "reflect")],
    ]


def cache_folder() -> Path:
    """Where the built kernel lives: DRCL_CACHE, or the user's cache folder."""
    if "DRCL_CACHE" in os.environ:
        return Path(os.environ["DRCL_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "drcl"


def _processor() -> str:
    """What -march=native depends on; a home folder may be shared by different machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return "".join(sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))}))
    except OSError:
        return platform.processor() + platform.machine()


def _build(compiler: list[str], target: Path) -> None:
    """Compile to a temporary name, then rename, because two processes may do this at once."""
    failures = []
    for extra in (["-march=native", "-fopenmp"], ["-march=native"], []):
        with tempfile.NamedTemporaryFile(dir=target.parent, suffix=".tmp", delete=False) as part:
            pass
        command = [*compiler, *FLAGS, *extra, str(SOURCE), "-o", part.name, "-lm"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=120)
            if done.returncode == 0:
                os.replace(part.name, target)
                return
            failures.append(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "no message")
        finally:
            Path(part.name).unlink(missing_ok=True)
    raise OSError(f"{shlex.join(compiler)} could not build it: {failures[-1]}")


@contextmanager
def _folder() -> Iterator[Path]:
    """The cache folder, or a temporary one if the cache cannot be written."""
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError:
        with tempfile.TemporaryDirectory(prefix="drcl-") as temporary:
            yield Path(temporary)
    else:
        yield folder


def _open(target: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(target))
    for suffix in SUFFIX.values():
        getattr(library, f"drcl_step_{suffix}").restype = None
        getattr(library, f"drcl_finite_{suffix}").restype = ctypes.c_int64
    return library


def _compiler() -> list[str]:
    if sys.platform != "win32":
        if os.environ.get("CC"):
            return shlex.split(os.environ["CC"])
        for name in ("cc", "gcc", "clang"):
            if shutil.which(name):
                return [name]
    raise OSError("no C compiler was found")


@functools.cache
def load() -> ctypes.CDLL | None:
    """The compiled kernel, or None with one warning that says why."""
    try:
        compiler = _compiler()
        about = repr((FLAGS, compiler, torch.__version__, _processor()))
        key = hashlib.sha256(SOURCE.read_bytes() + about.encode()).hexdigest()[:20]
        cached = cache_folder() / f"step-{key}.so"
        if cached.exists():
            try:
                return _open(cached)
            except (OSError, AttributeError):
                pass  # a damaged file is built again
        with _folder() as folder:
            _build(compiler, folder / cached.name)
            return _open(folder / cached.name)
    except (OSError, AttributeError, subprocess.SubprocessError) as reason:
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
