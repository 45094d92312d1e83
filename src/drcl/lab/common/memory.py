"""Keeps freed memory in the process, where the system's C library would hand it back after every training step.

Every step of a convolutional network allocates the same large activations again. If the C library returns them to the
system each time, each page of them is mapped and cleared anew (python -m benchmarks.speed.networks).
"""

from __future__ import annotations

import ctypes
import functools
import sys

KEPT = 1 << 30  # bytes of free memory that stay in the process; blocks up to this size come from there
_TRIM, _MAP = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's mallopt


@functools.cache
def keep() -> bool:
    """Whether the C library took the setting; other libraries than glibc keep theirs."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_MAP, KEPT)) and bool(mallopt(_TRIM, KEPT))
