"""What has to be set before torch is loaded."""

import os

# Some virtual machines announce AMX, Intel's matrix unit, and end a process that uses it, as torch does for bf16.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
