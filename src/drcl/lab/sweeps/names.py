"""Short names for the runs of a plan: no longer than it takes to tell one from the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from drcl.lab.runs.config import RunConfig


def labels(configs: Sequence[RunConfig]) -> list[str]:
    """``ewc strength=10 · seed 1``: method, the options that differ between its runs, and seed or benchmark if those
    differ."""
    several_benchmarks = len({config.benchmark for config in configs}) > 1
    several_seeds = len({config.seed for config in configs}) > 1
    given = [_options(config) for config in configs]
    found = []
    for config, mine in zip(configs, given):
        peers = [
            other
            for one, other in zip(configs, given)
            if (one.method, one.benchmark, one.seed) == (config.method, config.benchmark, config.seed)
        ]
        keys = sorted({key for other in peers for key in other})
        telling = [key for key in keys if len({str(other.get(key)) for other in peers}) > 1]
        words = [config.method, *(f"{key}={_short(mine.get(key))}" for key in telling)]
        parts = [config.benchmark] if several_benchmarks else []
        parts += [" ".join(words)] + ([f"seed {config.seed}"] if several_seeds else [])
        found.append(" · ".join(parts))
    return found


def _options(config: RunConfig) -> dict[str, Any]:
    return {**config.training, **config.benchmark_options, **config.method_options}


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else "default" if value is None else str(value)
