"""Does the eigenbasis pay? Eight pixel permutations of scikit-learn's digits, one network, no replay, no task labels.

    python -m benchmarks.studies.permuted_digits [--tasks 8] [--epochs 20] [--seeds 0 1] [--only WORD ...]

MLP 128-128, one head, SGD with momentum, every method with the same gradient budget. Prints the mean accuracy over all
tasks after the last one and the backward transfer, each method at the strength named beside it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

import drcl

Task = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def stream(tasks: int, seed: int) -> list[Task]:
    """Train inputs and labels, test inputs and labels; the first task has its pixels in order."""
    data = load_digits()
    x, y = torch.tensor(data.data / 16.0, dtype=torch.float32), torch.tensor(data.target)
    rng = np.random.default_rng(seed)
    order = torch.from_numpy(rng.permutation(len(x)))
    x, y, cut = x[order], y[order], 1437
    found = []
    for k in range(tasks):
        pixels = torch.arange(64) if k == 0 else torch.from_numpy(rng.permutation(64))
        found.append((x[:cut, pixels], y[:cut], x[cut:, pixels], y[cut:]))
    return found


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))


@dataclass(frozen=True)
class Method:
    options: dict[str, Any]
    importance: Callable[[], Any] | None  # None: plain SGD, nothing is consolidated


def run(method: Method, tasks: list[Task], epochs: int, seed: int, lr: float, batch: int = 32) -> tuple[float, float]:
    model = network(seed)
    opt = drcl.DRCL(model.named_parameters(), lr=lr, momentum=0.9, **method.options)
    generator = torch.Generator().manual_seed(seed)
    accuracy = np.zeros((len(tasks), len(tasks)))
    for k, (x, y, _, _) in enumerate(tasks):
        for _ in range(epochs):
            for rows in torch.randperm(len(x), generator=generator).split(batch):
                opt.zero_grad()
                F.cross_entropy(model(x[rows]), y[rows]).backward()
                opt.step()
        if method.importance is not None:
            opt.consolidate(model, [(x, y)], importance=method.importance())
        with torch.no_grad():
            for j, (_, _, u, v) in enumerate(tasks[: k + 1]):
                accuracy[k, j] = (model(u).argmax(1) == v).float().mean()
    learned = accuracy.diagonal()[:-1]
    return float(accuracy[-1].mean()), float((accuracy[-1, :-1] - learned).mean())


def methods() -> dict[str, Method]:
    flat = {"splitting": "forward-backward"}
    found = {"SGD": Method({}, None)}
    for strength in (1e-3, 1e-2, 1e-1):
        found[f"diagonal L1 {strength:g}"] = Method({**flat, "strength": strength}, drcl.Fisher)
    for strength in (1e-2, 1e-1, 1.0):
        found[f"diagonal L2 {strength:g}"] = Method({**flat, "strength": strength, "prox": "l2"}, drcl.Fisher)
    for prox, strengths in {"l1": (0.03, 0.1, 0.3), "l2": (1.0, 3.0, 10.0)}.items():
        for strength in strengths:
            own = {**flat, "prox": prox, "strength": strength, "plasticity_steps": 10}
            found[f"Kronecker {prox.upper()} {strength:g}, every 10"] = Method(own, kronecker())
    best = {**flat, "prox": "l2", "strength": 3.0, "plasticity_steps": 10}
    for steps in (1, 25):
        found[f"Kronecker L2 3, every {steps}"] = Method({**best, "plasticity_steps": steps}, kronecker())
    for what in ({"eigenvalues": "product"}, {"labels": "sampled"}, {"rank": 32}):
        found[f"Kronecker L2 3, every 10, {what}"] = Method(best, kronecker(**what))
    found["Kronecker L2 3, every 10, reflected"] = Method({**best, "splitting": "douglas-rachford"}, kronecker())
    return found


def kronecker(**options: Any) -> Callable[[], drcl.Kronecker]:
    return lambda: drcl.Kronecker(**{"labels": "exact", **options})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--only", nargs="*", default=[], help="methods whose name contains one of these words")
    arguments = parser.parse_args()
    for name, method in methods().items():
        if arguments.only and not any(word in name for word in arguments.only):
            continue
        start = time.perf_counter()
        results = [run(method, stream(arguments.tasks, s), arguments.epochs, s, arguments.lr) for s in arguments.seeds]
        average, transfer = np.mean(results, axis=0)
        spent = (time.perf_counter() - start) / len(results)
        print(f"{name:52} {100 * average:5.1f}   BWT {100 * transfer:6.1f}   {spent:5.1f} s", flush=True)


if __name__ == "__main__":
    main()
