"""Process-wide torch settings that a run needs; they are restored when it ends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from drcl.lab.common import parallel
from drcl.lab.training.settings import Training


def pick_device(name: str) -> torch.device:
    """The device called `name`. With several processes on one machine, each takes its own GPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f'device={name!r}: give "cpu", "cuda", "cuda:1", "mps" or "auto"') from None
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ValueError(f'device={name!r}: torch finds no CUDA device here; use device="cpu" or "auto"')
        if device.index is None:
            device = torch.device("cuda", parallel.local_rank())
    return device


@contextmanager
def surroundings(training: Training, device: torch.device) -> Iterator[None]:
    """Set threads, determinism and the global random generator for the duration of a run."""
    threads = torch.get_num_threads()
    strict = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    memory: Any = torch.utils.deterministic
    fill = memory.fill_uninitialized_memory
    cudnn = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    try:
        if training.threads is not None:
            torch.set_num_threads(training.threads)
        if training.deterministic:
            if device.type == "cuda":
                os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS starts
            torch.use_deterministic_algorithms(True, warn_only=True)
            memory.fill_uninitialized_memory = False  # filling only costs time: nothing here reads such memory
            torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
        with torch.random.fork_rng(devices=[device.index or 0] if device.type == "cuda" else []):
            yield
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(strict[0], warn_only=strict[1])
        memory.fill_uninitialized_memory = fill
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = cudnn
