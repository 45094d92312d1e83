"""The fused step under the address and undefined-behaviour sanitizers, driven by its own tests and by random lives."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import drcl

ROOT = Path(__file__).parents[2]


def library(name: str) -> str | None:
    """The sanitizer's library, which has to be loaded before Python itself."""
    if sys.platform != "linux" or shutil.which("gcc") is None:
        return None
    found = subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True).stdout.strip()
    return found if Path(found).is_absolute() else None


ASAN, UBSAN = library("libasan.so"), library("libubsan.so")


@pytest.mark.skipif(ASAN is None or UBSAN is None, reason="needs gcc with its sanitizers")
def test_no_sanitizer_complains(tmp_path):
    environment = os.environ | {
        "CC": "gcc -fsanitize=address,undefined -fno-sanitize-recover=all -g",
        "DRCL_CACHE": str(tmp_path),
        "LD_PRELOAD": f"{ASAN} {UBSAN}",
        "ASAN_OPTIONS": "detect_leaks=0",  # Python itself never frees some
        "OMP_NUM_THREADS": "2",
        "PYTHONPATH": str(Path(drcl.__file__).parents[1]),
    }
    tests = ["tests/splitting/test_kernels.py", "tests/splitting/test_checks.py", "tests/attack/test_api.py"]
    tests += ["tests/lab/networks/test_pooling.py"]
    chosen = "(native or Life or same_values) and not all_options and not train"
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests, "-k", chosen]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=540)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    for name in ("step", "pooling"):
        assert list(tmp_path.glob(f"{name}-*.so")), f"the sanitized build of {name}.c was not used"


@pytest.mark.skipif(ASAN is None, reason="needs gcc with its sanitizers")
def test_the_sanitizer_would_notice(tmp_path):
    """The check above is worth something only if it can fail: a tensor said to be longer than it is."""
    code = (
        "import torch\nfrom drcl.splitting import native\n"
        "native._sizes = lambda tensors: (native.ctypes.c_int64 * 1)(10**6)\n"
        "native.first_non_finite(native.load(), [torch.ones(10)])\n"
    )
    environment = os.environ | {
        "CC": "gcc -fsanitize=address -g",
        "DRCL_CACHE": str(tmp_path),
        "LD_PRELOAD": str(ASAN),
        "ASAN_OPTIONS": "detect_leaks=0",
        "PYTHONPATH": str(Path(drcl.__file__).parents[1]),
    }
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    assert "AddressSanitizer" in done.stderr
