"""Freed memory stays in the process: the system is not asked for the same pages at every step."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys

import pytest

from drcl.lab.common import memory

# What glibc itself says it holds. Counts of page faults would be nearer to the purpose, but some systems keep none.
HELD = """
import ctypes, sys, torch
from drcl.lab.common import memory
torch.set_num_threads(1)
if sys.argv[1] == "keep":
    assert memory.keep()
names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in names]
info = ctypes.CDLL(None).mallinfo2
info.restype = Info
before = info()
parts = [torch.ones(4 << 20) for _ in range(4)]  # 16 MB each
during = info()
del parts
after = info()
print((during.hblkhd - before.hblkhd) >> 20, (after.fordblks - before.fordblks) >> 20)
"""


def held(word: str) -> tuple[int, int]:
    """Megabytes that came straight from the system, and megabytes that stay in the process when they are free."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run([sys.executable, "-c", HELD, word], capture_output=True, text=True, check=True, env=plain)
    mapped, kept = done.stdout.split()
    return int(mapped), int(kept)


def tells() -> bool:
    """Whether this is a glibc that says what it holds: version 2.33 or newer."""
    return platform.libc_ver()[0] == "glibc" and hasattr(ctypes.CDLL(None), "mallinfo2")


@pytest.mark.skipif(not tells(), reason="the setting is one of glibc, and an old one does not tell what it holds")
def test_freed_memory_stays_in_the_process() -> None:
    assert memory.keep()
    mapped, kept = held("keep")
    assert mapped == 0
    assert kept >= 60
    mapped, kept = held("leave")  # or the test would prove nothing
    assert mapped >= 60
    assert kept < 10


def test_other_systems_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory.sys, "platform", "darwin")
    memory.keep.cache_clear()
    try:
        assert memory.keep() is False
    finally:
        memory.keep.cache_clear()
