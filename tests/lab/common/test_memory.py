"""Freed memory stays in the process: the system is not asked for the same pages at every step."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from drcl.lab.common import memory

FAULTS = """
import resource, sys, torch
from drcl.lab.common import memory
torch.set_num_threads(1)
if sys.argv[1] == "keep":
    assert memory.keep()
def work():
    for _ in range(20):
        parts = [torch.ones(4 << 20) for _ in range(4)]  # 16 MB each
        del parts
work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(word: str) -> int:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run([sys.executable, "-c", FAULTS, word], capture_output=True, text=True, check=True, env=plain)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the setting is one of glibc")
def test_pages_are_not_mapped_again() -> None:
    assert memory.keep()
    assert faults("keep") < faults("leave") / 10


def test_other_systems_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory.sys, "platform", "darwin")
    memory.keep.cache_clear()
    try:
        assert memory.keep() is False
    finally:
        memory.keep.cache_clear()
