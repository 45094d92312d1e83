"""Compiles a C file of this package on first use, with the system's C compiler, into the user's cache folder.

Later uses load that file. A build depends on the source, the flags, the compiler, torch and the processor.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import torch

T = TypeVar("T")
FAILURES = (OSError, AttributeError, subprocess.SubprocessError)
# No fast-math: the sources rely on NaN comparisons and on separate rounding of each operation.
FLAGS = [
    "-O3",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-strict-aliasing",
    "-shared",
    "-fPIC",
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


def _build(source: Path, compiler: list[str], target: Path) -> None:
    """Compile to a temporary name, then rename, because two processes may do this at once."""
    failures = []
    for extra in (["-march=native", "-fopenmp"], ["-march=native"], []):
        with tempfile.NamedTemporaryFile(dir=target.parent, suffix=".tmp", delete=False) as part:
            pass
        command = [*compiler, *FLAGS, *extra, str(source), "-o", part.name, "-lm"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=120)
            if done.returncode == 0:
                os.replace(part.name, target)
                return
            said = done.stderr.strip().splitlines() or ["no message"]
            failures.append(next((line for line in said if "error:" in line), said[-1]))
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


def _compiler() -> list[str]:
    if sys.platform != "win32":
        if os.environ.get("CC"):
            return shlex.split(os.environ["CC"])
        for name in ("cc", "gcc", "clang"):
            if shutil.which(name):
                return [name]
    raise OSError("no C compiler was found")


def library(source: Path, prepare: Callable[[ctypes.CDLL], T]) -> T:
    """What `prepare` makes of the loaded library. Raises OSError, AttributeError or SubprocessError if it cannot be
    built or loaded; a damaged file is built again."""
    compiler = _compiler()
    about = repr((FLAGS, compiler, torch.__version__, _processor()))
    key = hashlib.sha256(source.read_bytes() + about.encode()).hexdigest()[:20]
    cached = cache_folder() / f"{source.stem}-{key}.so"
    if cached.exists():
        try:
            return prepare(ctypes.CDLL(str(cached)))
        except (OSError, AttributeError):
            pass
    with _folder() as folder:
        _build(source, compiler, folder / cached.name)
        return prepare(ctypes.CDLL(str(folder / cached.name)))
