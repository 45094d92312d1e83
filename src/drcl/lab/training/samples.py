"""Detailed measurements of a few steps per task: how long they were, what was proposed and what got through.

A measurement takes several passes over the weights, so only about twenty steps per task are chosen, fewer on long
streams. The choice depends only on the length of the task, and unfinished measurements are part of a checkpoint, so a
resumed run records the same.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from drcl.lab.methods.base import Batch, Method, Where
from drcl.lab.training.rows import IterationRow, Record, StepRow, UpdateRow

PER_TASK, PER_RUN, APART = 20, 2000, 23  # steps to record per task and per run, and the least distance between two
PICKS = 100  # weights whose single updates are kept
UPDATE_TASKS = 20  # in a long stream, only this many tasks record them
MEANS = ("step_norm", "proposed", "passed", "still", "residual", "iterations")


def apart(steps: int, tasks: int) -> int:
    """The distance between measured steps in a task of so many steps; the first comes after half that distance."""
    most = max(2, min(PER_TASK, PER_RUN // tasks))
    return min(max(APART, -(-steps // most)), steps)


class Samples:
    """Sums over the measured steps of a task."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []  # finished ones of this task
        self.open: dict[str, Any] | None = None  # waits for the end of its proposal
        self.residuals: list[list[float]] = []  # per negotiated step, one value per iteration
        self.updates = torch.zeros(2, PICKS, dtype=torch.float64)  # proposed and passed, summed
        self.steps = 0  # in that sum
        self.losses: list[tuple[float, float]] = []  # of each batch of an online stream, before and after its step

    def begin(self, at: Where, step_norm: float, still: float, updates: Tensor, filtered: bool) -> None:
        """Add a measured step. If a method filters, its observer reports what got through (`settle`)."""
        self._drop()
        row = {"task": at.task, "epoch": at.epoch, "step": at.step, "step_norm": step_norm}
        if filtered:
            self.open = row
            return
        free = {"proposed": step_norm, "passed": step_norm, "still": still}
        self.rows.append(row | free | {"residual": math.nan, "iterations": math.nan})
        self._add(updates, updates)

    def settle(self, method: Method, picks: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Take what the method's observer saw, if the proposal is complete."""
        observer = method.observer()
        seen = [] if observer is None else observer.take()
        if self.open is None or not seen:
            return
        count, last = len(seen), seen[-1]
        self.rows.append(
            self.open
            | {
                "proposed": sum(n.proposed for n in seen) / count,
                "passed": sum(n.passed for n in seen) / count,
                "still": last.still / max(last.weights, 1),
                "residual": last.residual,
                "iterations": float(count),
            }
        )
        self.residuals.append([n.residual for n in seen])
        none = [torch.zeros(len(at), dtype=torch.float64) for _, at in picks]
        for n in seen:
            found = [
                torch.cat([table.get(p, zero).cpu() for (p, _), zero in zip(picks, none)])
                for table in (n.picked_proposed, n.picked_passed)
            ]
            self._add(*found)
        self.open = None

    def end(self, task: int, tell_updates: bool) -> tuple[dict[str, float], list[Record]]:
        """The means over the finished task, and its rows."""
        self._drop()
        means = {}
        for key in MEANS:
            known = [row[key] for row in self.rows if not math.isnan(row[key])]
            means[key] = sum(known) / len(known) if known else math.nan
        told: list[Record] = [StepRow(**row) for row in self.rows]
        longest = max(map(len, self.residuals), default=0)
        for k in range(longest if longest > 1 else 0):
            there = [each[k] for each in self.residuals if len(each) > k]
            told.append(IterationRow(task, k + 1, sum(there) / len(there)))
        if tell_updates and self.steps:
            mean = (self.updates / self.steps).tolist()
            told += [UpdateRow(task, k, a, b) for k, (a, b) in enumerate(zip(*mean))]
        return means, told

    def _add(self, proposed: Tensor, passed: Tensor) -> None:
        self.updates[0, : len(proposed)] += proposed
        self.updates[1, : len(passed)] += passed
        self.steps += 1

    def _drop(self) -> None:
        """A proposal that was never completed is reported without what got through."""
        if self.open is not None:
            self.rows.append(self.open | {key: math.nan for key in MEANS if key != "step_norm"})
            self.open = None

    def state_dict(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


def picked(trunk: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Parameters and positions in them: some weights, spread over the whole trunk, the same ones in every run."""
    sizes = [p.numel() for p in trunk]
    total = sum(sizes)
    if not total:
        return []
    places = torch.randperm(total, generator=torch.Generator().manual_seed(0))[:PICKS].sort().values
    found, start = [], 0
    for p, size in zip(trunk, sizes):
        mine = places[(places >= start) & (places < start + size)] - start
        if len(mine):
            found.append((p, mine.to(p.device)))
        start += size
    return found


class Look:
    """Measures steps of one stage: use ``with look(batch):`` around a step."""

    def __init__(self, method: Method, samples: Samples, probe: Callable[[Batch], float] | None, every: bool) -> None:
        self.method, self.samples, self.probe = method, samples, probe
        self.every = every  # record the length of every step
        self.trunk = list(method.model.groups()["trunk"].values())
        self.picks = picked(self.trunk)
        self.apart = apart(method.at.steps, method.setting.tasks)

    def due(self) -> bool:
        """Whether the current step is to be measured."""
        return self.method.at.step % self.apart == self.apart // 2

    def wanted(self) -> bool:
        """Whether anything is to be done for this step. This is asked before each step, so it must be fast."""
        return self.every or self.samples.open is not None or self.due()

    @contextlib.contextmanager
    def __call__(self, batch: Batch, running: dict[str, Any]) -> Iterator[None]:
        """`running` gets the length of each step if all of them are wanted."""
        method, samples = self.method, self.samples
        chosen = self.due()
        observer = method.observer()
        if observer is not None:
            observer.armed = chosen or samples.open is not None
            if observer.armed:
                observer.picks = dict(self.picks)
        before = [p.detach().clone() for p in self.trunk] if chosen or self.every else []
        loss = self.probe(batch) if chosen and self.probe is not None else math.nan
        yield
        if before:
            moved = self._moved(before)
            if self.every:
                running["norm"] += moved
                running["steps"] += 1
            if chosen:
                samples.begin(method.at, moved, *self._single(before), filtered=observer is not None)
        if observer is not None and observer.armed:
            samples.settle(method, self.picks)
            observer.armed = False
        if not math.isnan(loss) and self.probe is not None:
            samples.losses.append((loss, self.probe(batch)))

    @torch.no_grad()
    def _moved(self, before: list[Tensor]) -> float:
        lengths = [torch.linalg.vector_norm(p - q, dtype=torch.float64) for p, q in zip(self.trunk, before)]
        return math.sqrt(sum(float(length) ** 2 for length in lengths))

    @torch.no_grad()
    def _single(self, before: list[Tensor]) -> tuple[float, Tensor]:
        """The share of weights that stayed, and the updates of the picked ones."""
        weights = sum(p.numel() for p in self.trunk)
        still = sum(int((p == q).sum()) for p, q in zip(self.trunk, before)) / max(weights, 1)
        old = {id(p): q for p, q in zip(self.trunk, before)}
        ways = [(p.detach().reshape(-1)[at] - old[id(p)].reshape(-1)[at]).double().cpu() for p, at in self.picks]
        return still, torch.cat(ways) if ways else torch.zeros(0, dtype=torch.float64)
