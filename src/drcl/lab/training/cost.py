"""What a run costs, separately for training, consolidation and evaluation: seconds and peak memory.

Peak memory on the CPU is the high-water mark of the process' resident memory, including libraries. On Linux it is reset
when a phase begins; elsewhere a phase inherits the mark of those before it. On a GPU it is torch's own peak.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import torch

PHASES = ("training", "consolidation", "evaluation")


class Cost:
    """A stopwatch with one dial per phase; time outside of all phases (checkpoints) is not counted."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.peak_bytes = dict.fromkeys(PHASES, 0)
        self.gradient_evaluations = 0
        self.state_bytes = 0
        self.per_task_seconds: list[float] = []
        self._phase: str | None = None
        self._since = 0.0

    def switch(self, phase: str | None) -> str | None:
        """End the current phase and begin another (or none); returns the phase that ended."""
        before, now = self._phase, time.perf_counter()
        if before is not None:
            self.seconds[before] += now - self._since
            self.peak_bytes[before] = max(self.peak_bytes[before], _peak(self.device))
        if phase is not None and phase != before:
            _reset_peak(self.device)
        self._phase, self._since = phase, time.perf_counter()
        return before

    def total(self) -> float:
        """Seconds of all phases so far, the running one included."""
        running = time.perf_counter() - self._since if self._phase is not None else 0.0
        return sum(self.seconds.values()) + running

    def learning(self) -> float:
        """Seconds of training and consolidation so far."""
        running = time.perf_counter() - self._since if self._phase in PHASES[:2] else 0.0
        return self.seconds["training"] + self.seconds["consolidation"] + running

    def as_json(self, parameters: int) -> dict[str, Any]:
        phases = {p: {"seconds": self.seconds[p], "peak_bytes": self.peak_bytes[p]} for p in PHASES}
        return phases | {
            "gradient_evaluations": self.gradient_evaluations,  # backward passes over a mini-batch
            "state_bytes": self.state_bytes,
            "parameters": parameters,
            "per_task_seconds": list(self.per_task_seconds),
        }

    def state_dict(self) -> dict[str, Any]:
        self.switch(self._phase)
        own = ("seconds", "peak_bytes", "gradient_evaluations", "state_bytes", "per_task_seconds")
        return {key: getattr(self, key) for key in own}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


def _peak(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    try:
        status = Path("/proc/self/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) * 1024
    except (OSError, IndexError, ValueError):
        pass
    try:
        import resource
        import sys
    except ModuleNotFoundError:  # Windows
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
