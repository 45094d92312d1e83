"""How many weights changed by how much over a task: a histogram of |change| per layer, with the same edges for all."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from drcl.lab.training.rows import ChangeRow

LOW, HIGH, PER_DECADE = -6, 1, 4  # powers of ten, and bins between two of them
EDGES = tuple(10 ** (k / PER_DECADE) for k in range(LOW * PER_DECADE, HIGH * PER_DECADE + 1))
BINS = len(EDGES) + 1  # one below the first edge, one above the last
MOST_TASKS = 50  # in a long stream only this many tasks are recorded, evenly spaced


def told(task: int, tasks: int, most: int = MOST_TASKS) -> bool:
    """Whether a long stream records this task: the first, the last, and some between them."""
    return task == tasks - 1 or task % -(-tasks // most) == 0


@torch.no_grad()
def histogram(task: int, before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> list[ChangeRow]:
    """One row per layer. Weights that stayed equal bit for bit are counted as `unmoved` and in no bin."""
    layers: dict[str, list[str]] = {}
    for name, old in before.items():
        if old.numel():
            short = name.removeprefix("trunk.")
            layers.setdefault(short.rpartition(".")[0] or short, []).append(name)
    rows = []
    for layer, names in layers.items():
        counts, weights, unmoved = torch.zeros(BINS, dtype=torch.int64), 0, 0
        for name in names:
            old, new = before[name].detach(), after[name].detach()
            moved = new != old
            change = (new.double() - old.double()).abs()[moved]
            edges = torch.tensor(EDGES, dtype=torch.float64, device=change.device)
            counts += torch.bincount(torch.bucketize(change, edges, right=True), minlength=BINS).cpu()
            weights += old.numel()
            unmoved += old.numel() - int(moved.sum())
        rows.append(ChangeRow(task, layer, weights, unmoved, tuple(counts.tolist())))
    return rows
