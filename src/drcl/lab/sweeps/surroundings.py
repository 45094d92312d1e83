"""Reset what a process carries from one run to the next to what a new process has."""

from __future__ import annotations

import ctypes
import gc
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch


def remember() -> Callable[[], None]:
    """Record the state of the process before its first run; the returned function restores it.

    A run restores most of this itself, but its results must not depend on that.
    """
    environment, folder = dict(os.environ), Path.cwd()
    dtype, threads, precision = torch.get_default_dtype(), torch.get_num_threads(), torch.get_float32_matmul_precision()
    strict = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    memory: Any = torch.utils.deterministic
    fill = memory.fill_uninitialized_memory
    cudnn = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    generator = torch.get_rng_state()

    def begin_anew() -> None:
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        torch.set_default_dtype(dtype)
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)
        torch.use_deterministic_algorithms(strict[0], warn_only=strict[1])
        memory.fill_uninitialized_memory = fill
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = cudnn
        torch.set_grad_enabled(True)
        torch.set_rng_state(generator)
        np.random.seed()  # noqa: NPY002 - as in a new process: unknown, whatever the run before has set
        random.seed()
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(torch.initial_seed())
        _give_back_memory()

    return begin_anew


def _give_back_memory() -> None:
    """Memory that one run has left behind must not count for the next one."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None  # glibc has it
    if trim is not None:
        trim(0)


def resident() -> int:
    """Bytes of memory that this process holds; 0 where it is not known."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
