"""How long the paper's runs would take on this machine: a few training steps of each network are timed once and
multiplied. Evaluation and consolidation are not counted separately, and a method's cost relative to SGD is a rough
number from ``paper.toml``. The estimate is good only for choosing a budget."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import platformdirs
import torch
from torch import nn

from drcl.lab.networks import TRUNKS
from drcl.lab.paper.contents import Paper
from drcl.lab.paper.plan import Plan, Planned
from drcl.lab.runs.checkpoint import replace_whole
from drcl.lab.runs.config import RunConfig

_STEPS, _SECONDS = 5, 1.0  # one probe takes this many steps, or as many as fit into this time
_START = 2.0  # seconds that a run spends before its first step and after its last


def probe(model: dict[str, Any], shape: tuple[int, int, int], batch: int) -> float:
    """Seconds per SGD step of this network on a batch of noise."""
    options = dict(model)
    kind = options.pop("kind")
    trunk: Any = TRUNKS[kind](shape, tasks=1, **options)
    network = nn.Sequential(trunk, nn.Linear(trunk.out_features, 10))
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3)
    x, y = torch.zeros(batch, *shape), torch.zeros(batch, dtype=torch.long)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(x), y).backward()
        optimizer.step()

    step()  # the first step also allocates and is slower
    began = time.perf_counter()
    times: list[float] = []
    while len(times) < _STEPS and time.perf_counter() - began < _SECONDS:
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return min(times)


def usual_file() -> Path:
    return Path(platformdirs.user_cache_dir("drcl", appauthor=False)) / "speeds.json"


@dataclass
class Speeds:
    """Seconds per step by network, image and batch; measured on first use and kept in a file."""

    file: Path | None = field(default_factory=usual_file)
    measure: Callable[[dict[str, Any], tuple[int, int, int], int], float] = probe
    known: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.file is not None:
            with suppress(OSError, ValueError):
                stored = json.loads(self.file.read_text(encoding="utf-8"))
                self.known |= {str(key): float(value) for key, value in stored.items()}

    def of(self, model: dict[str, Any], shape: tuple[int, int, int], batch: int) -> float:
        key = json.dumps([model, shape, batch, torch.get_num_threads()], sort_keys=True)
        if key not in self.known:
            self.known[key] = self.measure(model, shape, batch)
            self._keep()
        return self.known[key]

    def _keep(self) -> None:
        if self.file is not None:
            with suppress(OSError):  # if the file cannot be written, the next command only measures again
                self.file.parent.mkdir(parents=True, exist_ok=True)
                replace_whole(self.file, json.dumps(self.known, indent=1).encode())


def steps(paper: Paper, config: RunConfig) -> int:
    """Training steps of a whole run."""
    made = config.make_benchmark()
    tasks = config.stream_options()["tasks"] or made.tasks
    if made.steps is not None:
        return tasks * made.steps
    images = paper.data[config.benchmark].images or 0
    limit = config.stream_options()["limit_per_class"]
    images = images if limit is None else min(images, limit * made.classes)
    return tasks * (made.epochs or 1) * max(1, round(images / made.batch))


def hours(paper: Paper, runs: Iterable[Planned], speeds: Speeds) -> float:
    """Hours for these runs one after the other; each run counts once, even if it stands in for several."""
    seconds: dict[str, float] = {}
    for run in runs:
        made = run.config.make_benchmark()
        shape = paper.data[run.config.benchmark].shape
        step = speeds.of(dict(made.model), shape, made.batch)
        seconds[run.config.name] = _START + steps(paper, run.config) * step * run.cost
    return sum(seconds.values()) / 3600


def told(value: float) -> str:
    """An estimate as text, with few digits because it is rough."""
    if value < 1 / 60:
        return "< 1 min"
    if value < 1:
        return f"{round(60 * value)} min"
    return f"{value:.1f} h" if value < 10 else f"{value:,.0f} h"


def estimated(paper: Paper, plan: Plan, speeds: Speeds) -> str:
    return told(hours(paper, plan.runs, speeds)) if plan.runs else "–"
