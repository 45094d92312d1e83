"""What has to be set before torch is loaded and before tests send signals."""

import os
import signal

# Some virtual machines announce AMX, Intel's matrix unit, and end a process that uses it, as torch does for bf16.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

# A shell starts background jobs with Ctrl-C ignored. Tests that press it need Python's own handler.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
