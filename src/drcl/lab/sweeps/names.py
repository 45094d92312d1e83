"""Short names for the runs of a plan: just long enough to distinguish them."""

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
    peers: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for config, mine in zip(configs, given):
        peers.setdefault(_place(config), []).append(mine)
    telling = {place: _telling(mine) for place, mine in peers.items()}
    found = []
    for config, mine in zip(configs, given):
        words = [config.method, *(f"{key}={_short(mine.get(key))}" for key in telling[_place(config)])]
        parts = [config.benchmark] if several_benchmarks else []
        parts += [" ".join(words)] + ([f"seed {config.seed}"] if several_seeds else [])
        found.append(" · ".join(parts))
    return found


def _place(config: RunConfig) -> tuple[str, str, int]:
    return config.method, config.benchmark, config.seed


def _telling(peers: Sequence[dict[str, Any]]) -> list[str]:
    """The options that are not the same in all of them."""
    keys = sorted({key for each in peers for key in each})
    return [key for key in keys if len({str(each.get(key)) for each in peers}) > 1]


def _options(config: RunConfig) -> dict[str, Any]:
    return {**config.training, **config.benchmark_options, **config.method_options}


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else "default" if value is None else str(value)
