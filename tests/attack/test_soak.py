"""Task after task without end: memory, state, time per task and importance stay where they were.

A small network learns 40 tasks here, and 500 with ``DRCL_ATTACK=12.5 python -m pytest tests/attack/test_soak.py``.
"""

from __future__ import annotations

import gc
import statistics
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.attack import tally
from tests.attack.budget import cases
from torch import nn
from torch.nn import functional as F

from drcl import DRCL

TASKS = cases(40)
WARM = 10  # tasks until every cache of torch and of the allocator is filled
MEASURED: dict[str, Any] = {}


@pytest.fixture(scope="module", autouse=True)
def figures(request: pytest.FixtureRequest) -> Any:
    yield
    tally.keep("soak", request, tasks=TASKS, **MEASURED)


def resident() -> int:
    """Bytes of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def size(value: Any) -> int:
    """Bytes of all tensors in nested containers."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, dict):
        return sum(map(size, value.values()))
    return sum(map(size, value)) if isinstance(value, list | tuple) else 0


def task(number: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Each task has a rule of its own."""
    generator = torch.Generator().manual_seed(number)
    rule = torch.randn(20, 5, generator=generator)
    x = torch.randn(128, 20, generator=generator)
    return list(zip(x.split(16), (x @ rule).argmax(1).split(16)))


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("per weight", {"lr": 0.05, "momentum": 0.9}),
        ("directions", {"lr": 0.05, "momentum": 0.9, "preset": "directions"}),
    ],
)
def test_everything_stays_bounded(name: str, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5))
    optimizer = DRCL(model.named_parameters(), **options)
    seconds: list[float] = []
    memory: list[int] = []
    state: list[int] = []
    largest: list[float] = []
    for number in range(TASKS):
        batches = task(number)
        began = time.process_time()
        for x, y in batches:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        optimizer.consolidate(model, batches)
        seconds.append(time.process_time() - began)
        kept = [own["importance"] for _, own in optimizer.protected()]
        assert all(bool(torch.isfinite(each).all()) for each in (*kept, *model.parameters())), number
        # A task adds one for every weight, and where importance is a share, a million among all of them.
        total = sum(float(each.double().sum()) for each in kept)
        each_task = 1e6 if name == "directions" else sum(each.numel() for each in kept)
        assert total <= (number + 1) * each_task * 1.001, f"task {number}: importance is {total} in total"
        largest.append(max(float(each.max()) for each in kept))
        if number % 10 == 0:
            gc.collect()
        memory.append(resident())
        state.append(size(optimizer.state_dict()))
    assert optimizer.tasks == TASKS
    warm = min(WARM, TASKS // 2)
    part = min(50, TASKS // 4)
    first, last = (statistics.median(s) for s in (seconds[warm : warm + part], seconds[-part:]))
    growth = max(memory[-part:]) - max(memory[warm : warm + part])
    MEASURED[name] = {
        "state bytes after two tasks": state[1],
        "state bytes at the end": state[-1],
        "memory grown by bytes": growth,
        "largest importance": largest[-1],
        "time of the last tasks over the first": round(last / first, 2),
    }
    assert state[-1] == state[1]
    assert growth < (16 << 20), f"{growth} bytes more after {TASKS} tasks"
    assert last < 3 * first
