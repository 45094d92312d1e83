"""How many tasks fit into a network: permuted digits, one after the other, into an MLP 256-256.

    python -m benchmarks.studies.capacity [--tasks 200] [--forms sgd,weights] [--out results/capacity/capacity.csv]

Every task is the 8x8 digits with their pixels in another order, five epochs of SGD 0.02 with momentum 0.9. After 1, 2,
5, 10, 20, 50, 100, 150 and 200 tasks three accuracies are measured on held-out digits: of the first task, of the newest
and of all so far. A form that is in the file is not run again; `make tables` writes docs/capacity.md from it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from benchmarks.studies.records import RESULTS, add, rows
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import drcl

MOMENTS = (1, 2, 5, 10, 20, 50, 100, 150, 200)
FORMS: dict[str, dict[str, Any] | None] = {
    "sgd": None,
    "auto": {},
    "weights": {"preset": "weights"},
    "directions": {"preset": "directions"},
    "directions x 10": {"preset": "directions", "strength": 0.03},
}
COLUMNS = ("form", "width", "tasks", "first", "newest", "all")
RECORDS = RESULTS / "capacity/capacity.csv"


def digits() -> tuple[Tensor, Tensor]:
    """1,797 digits in a fixed random order; the last 400 are held out."""
    found = load_digits()
    order = torch.randperm(1797, generator=torch.Generator().manual_seed(0))
    return torch.tensor(found.data / 16, dtype=torch.float32)[order], torch.tensor(found.target)[order]


def stream(form: dict[str, Any] | None, width: int, tasks: int, seed: int = 0) -> Iterator[tuple[int, list[float]]]:
    """Train task after task; at each moment the accuracies of all tasks so far."""
    x, y = digits()
    rng = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))
    opt = drcl.DRCL(model.named_parameters(), lr=0.02, momentum=0.9, **(form or {}))
    orders: list[Tensor] = []
    for task in range(tasks):
        orders.append(torch.randperm(64, generator=rng) if task else torch.arange(64))
        seen = x[:1397, orders[-1]]
        for _ in range(5):
            for part in torch.randperm(1397, generator=rng).split(32):
                opt.zero_grad()
                cross_entropy(model(seen[part]), y[part]).backward()
                opt.step()
        if form is not None:
            opt.consolidate(model, list(zip(seen.split(100), y[:1397].split(100))))
        if task + 1 in MOMENTS or task + 1 == tasks:
            with torch.no_grad(), opt.deployed():
                hits = [(model(x[1397:, order]).argmax(1) == y[1397:]).float().mean() for order in orders]
            yield task + 1, [100 * float(hit) for hit in hits]


def run(args: argparse.Namespace) -> None:
    for form in args.forms:
        if any(row["form"] == form and row["width"] == str(args.width) for row in rows(args.out)):
            continue
        found = []
        for tasks, accuracies in stream(FORMS[form], args.width, args.tasks):
            row = [f"{accuracies[0]:.1f}", f"{accuracies[-1]:.1f}", f"{sum(accuracies) / len(accuracies):.1f}"]
            found.append(dict(zip(COLUMNS, [form, args.width, tasks, *row])))
            print(*found[-1].values(), flush=True)
        add(args.out, COLUMNS, found)


def markdown(records: Path = RECORDS) -> str:
    lines = ["| form | tasks | first task, % | newest task, % | all tasks, % |", "|---|---|---|---|---|"]
    lines += [f"| {r['form']} | {r['tasks']} | {r['first']} | {r['newest']} | {r['all']} |" for r in rows(records)]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--forms", type=lambda text: text.split(","), default=list(FORMS))
    parser.add_argument("--out", type=Path, default=RECORDS)
    run(parser.parse_args())


if __name__ == "__main__":
    main()
