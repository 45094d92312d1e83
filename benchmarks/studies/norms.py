"""What should become of BatchNorm's running statistics when tasks change? The study behind docs/norms.md.

    python -m benchmarks.studies.norms [--networks mlp cnn] [--seeds 0 1 2]

runs what results/norms/runs.csv lacks; `make tables` writes the page from it.

Digits of scikit-learn: pixels permuted (five tasks, one head, domain-incremental) and classes split (five tasks of two,
a head each, task-incremental), with an MLP, a small CNN and a small residual network, all with BatchNorm. DRCL with
preset="directions" around SGD with momentum and around AdamW. Judged on validation data; the last 397 digits are not
touched.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

import drcl
import drcl.norms
from drcl.norms import FIRST, POLICIES, layers_with_statistics
from drcl.norms import statistics as statistics_of

RUNS = Path(__file__).resolve().parents[2] / "results" / "norms" / "runs.csv"
TRAIN, VALID = 1000, 400
NETWORKS = ("mlp", "cnn", "resnet")
FIELDS = ("problem", "network", "optimizer", "norms", "strength", "seed", "average", "learned", "transfer", "first")


class Task(NamedTuple):
    """Training data, validation data and the head that answers."""

    x: Tensor
    y: Tensor
    valid_x: Tensor
    valid_y: Tensor
    head: int


class Case(NamedTuple):
    """One run."""

    problem: str
    network: str
    optimizer: str
    norms: str
    strength: float
    seed: int

    def key(self) -> tuple[str, ...]:
        return tuple(map(str, self))


# ---- problems and networks


def digits(seed: int) -> tuple[Tensor, Tensor]:
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.data))  # the test data stay the same for all seeds
    order[: TRAIN + VALID] = np.random.default_rng([1, seed]).permutation(order[: TRAIN + VALID])
    return torch.tensor(data.data[order] / 16.0, dtype=torch.float32), torch.tensor(data.target[order])


def permuted(seed: int) -> list[Task]:
    (x, y), rng = digits(seed), np.random.default_rng([2, seed])
    end, found = TRAIN + VALID, []
    for k in range(5):
        z = x if k == 0 else x[:, torch.from_numpy(rng.permutation(64))]
        found.append(Task(z[:TRAIN], y[:TRAIN], z[TRAIN:end], y[TRAIN:end], 0))
    return found


def split(seed: int) -> list[Task]:
    (x, y), end = digits(seed), TRAIN + VALID
    classes = np.random.default_rng([3, seed]).permutation(10).reshape(5, 2)
    found = []
    for k, pair in enumerate(classes):
        rows = torch.isin(y, torch.from_numpy(pair))
        train, valid = rows[:TRAIN], rows[TRAIN:end]
        z = (y == int(pair[1])).long()
        found.append(Task(x[:TRAIN][train], z[:TRAIN][train], x[TRAIN:end][valid], z[TRAIN:end][valid], k))
    return found


class Block(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False), norm(outside)
        self.conv2, self.norm2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False), norm(outside)
        self.shortcut = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), norm(outside))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x)))))
        return torch.relu(y + self.shortcut(x))


def trunk(kind: str, group: bool) -> nn.Sequential:
    """Features [B, 64] of images [B, 64]."""

    def norm(channels: int) -> nn.Module:
        return nn.GroupNorm(8, channels) if group else nn.BatchNorm2d(channels)

    def flat(channels: int) -> nn.Module:
        return nn.GroupNorm(8, channels) if group else nn.BatchNorm1d(channels)

    if kind == "mlp":
        return nn.Sequential(
            *(nn.Linear(64, 128), flat(128), nn.ReLU()),
            *(nn.Linear(128, 64), flat(64), nn.ReLU()),
        )
    image = nn.Unflatten(1, (1, 8, 8))
    if kind == "cnn":
        return nn.Sequential(
            *(image, nn.Conv2d(1, 16, 3, padding=1), norm(16), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(16, 32, 3, padding=1), norm(32), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
            *(nn.Linear(128, 64), flat(64), nn.ReLU()),
        )
    return nn.Sequential(
        *(image, nn.Conv2d(1, 16, 3, padding=1, bias=False), norm(16), nn.ReLU()),
        *(Block(16, 16, 1, norm), Block(16, 32, 2, norm), Block(32, 64, 2, norm)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
    )


class Network(nn.Module):
    def __init__(self, kind: str, heads: int, classes: int, group: bool) -> None:
        super().__init__()
        self.trunk = trunk(kind, group)
        self.heads = nn.ModuleList(nn.Linear(64, classes) for _ in range(heads))

    def forward(self, x: Tensor, head: int) -> Tensor:
        return self.heads[head](self.trunk(x))


# ---- a run


def optimizer(case: Case, model: Network) -> drcl.DRCL:
    name, _, first = case.norms.partition("-")
    policy = case.norms if case.norms in POLICIES else name if first else "shared"
    drcl.norms.FIRST = int(first) if policy == "averaged" and first else FIRST
    options = {"preset": "directions", "strength": case.strength, "norms": policy}
    groups: list[dict[str, Any]] = [{"params": list(model.trunk.named_parameters("trunk"))}]
    heads = list(model.heads.named_parameters("heads"))
    groups.append({"params": heads, "free": True} if len(model.heads) > 1 else {"params": heads})
    if case.optimizer == "sgd":
        return drcl.DRCL(groups, lr=0.02, momentum=0.9, **options)
    return drcl.DRCL.around(torch.optim.AdamW(groups, lr=1e-3), **options)


class Other:
    """Policies that the library does not have: applied to the model by hand, before a task is consolidated.

    "first": frozen for evaluation only. "afterwards": the mean over tasks for evaluation only.
    """

    def __init__(self, name: str, model: Network) -> None:
        self.name, self.model = name, model
        self.kept: list[dict[str, Tensor]] = []

    @torch.no_grad()
    def end_task(self) -> None:
        own = statistics_of(layers_with_statistics(self.model))
        self.kept.append({name: t.clone() for name, t in own.items()})
        for name, t in own.items():
            rows = [kept[name] for kept in self.kept]
            if self.name == "first":
                t.copy_(rows[0])
            elif self.name == "afterwards" and t.is_floating_point():
                t.copy_(torch.stack(rows).mean(0))


def run(case: Case) -> dict[str, Any]:
    tasks = {"permuted": permuted, "split": split}[case.problem](case.seed)
    epochs, batch = {"permuted": (8, 32), "split": (12, 16)}[case.problem]
    torch.manual_seed(case.seed)
    heads, classes = (1, 10) if case.problem == "permuted" else (5, 2)
    model = Network(case.network, heads, classes, case.norms == "group")
    opt, other = optimizer(case, model), Other(case.norms, model)
    generator = torch.Generator().manual_seed(case.seed)
    accuracy = np.full((len(tasks), len(tasks)), math.nan)
    for k, task in enumerate(tasks):
        model.train()
        for _ in range(epochs):
            for rows in torch.randperm(len(task.x), generator=generator).split(batch):
                if len(rows) > 1:
                    opt.zero_grad()
                    F.cross_entropy(model(task.x[rows], task.head), task.y[rows]).backward()
                    opt.step()
        other.end_task()
        opt.consolidate(model, [(task.x, task.y)], forward=lambda m, b, h=task.head: (m(b[0], h), b[1]))
        model.eval()
        for j, old in enumerate(tasks[: k + 1]):
            with opt.deployed(task=j), torch.no_grad():
                right = model(old.valid_x, old.head).argmax(1) == old.valid_y
            accuracy[k, j] = right.float().mean()
    learned, last = accuracy.diagonal(), accuracy[-1]
    numbers = {
        "average": last.mean(),
        "learned": learned.mean(),
        "transfer": (last - learned)[:-1].mean(),
        "first": last[0],
    }
    return {**case._asdict(), **{k: f"{100 * v:.2f}" for k, v in numbers.items()}}


# ---- the study

ROWS = {
    "shared": "shared: every task overwrites them",
    "first": "the first task's when judged, the batch's in training",
    "afterwards": "the mean over tasks when judged, the batch's in training",
    "frozen": "frozen: the first task's, in training too",
    "averaged": "**averaged over tasks, in training too**",
    "per-task": "per task; the task is told",
    "group": "none: GroupNorm in place of BatchNorm",
    "averaged-1": "averaged, the first task counts once",
    "averaged-4": "averaged, the first task counts four times",
    "averaged-19": "averaged, the first task counts 19 times",
}


ONCE = ("first", "afterwards", "averaged-1", "averaged-4", "averaged-19")  # one seed says enough


def cases(seeds: list[int], networks: list[str]) -> Iterator[Case]:
    for seed in seeds:
        for network in networks:
            for problem in ("permuted", "split"):
                for name in ("sgd", "adamw"):
                    for norms in ROWS:
                        told_apart = problem == "split" and norms.startswith("averaged-")  # no matter there
                        if not told_apart and (seed == seeds[0] or norms not in ONCE):
                            yield Case(problem, network, name, norms, 0.003, seed)


def read() -> dict[tuple[str, ...], dict[str, str]]:
    if not RUNS.exists():
        return {}
    with RUNS.open(encoding="utf-8", newline="") as file:
        return {tuple(row[field] for field in Case._fields): row for row in csv.DictReader(file)}


def write(rows: dict[tuple[str, ...], dict[str, str]]) -> None:
    RUNS.parent.mkdir(parents=True, exist_ok=True)
    with RUNS.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows.values())


def table(problem: str, network: str) -> str:
    """Mean over seeds: average accuracy, of it what was learned, and backward transfer, around each optimizer."""
    rows = read().values()
    lines = ["| statistics | seeds | SGD | learned | transfer | AdamW | learned | transfer |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    for norms, about in ROWS.items():
        mine = [r for r in rows if (r["problem"], r["network"], r["norms"]) == (problem, network, norms)]
        cells, counts = [], []
        for name in ("sgd", "adamw"):
            all_seeds = [r for r in mine if r["optimizer"] == name]
            counts.append(len(all_seeds))
            some = [r for r in all_seeds if r["average"] != "diverged"]
            lost = len(all_seeds) - len(some)
            if lost:
                cells += [f"{lost} diverged", "", ""]
                continue
            average = [float(r["average"]) for r in some]
            spread = f" ± {statistics.stdev(average):.1f}" if len(some) > 1 else ""
            cells.append(f"{statistics.mean(average):.1f}{spread}" if some else "")
            for key in ("learned", "transfer"):
                cells.append(f"{statistics.mean(float(r[key]) for r in some):.1f}" if some else "")
        if any(counts):
            lines.append(f"| {about} | {min(counts)} | " + " | ".join(cells).replace("-", "−") + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for case in cases(arguments.seeds, arguments.networks):
        if case.key() not in read():
            try:
                done = run(case)
            except FloatingPointError:
                done = {**case._asdict(), **dict.fromkeys(FIELDS[len(case) :], "diverged")}
            write({**read(), case.key(): done})
            print(*done.values(), flush=True)


if __name__ == "__main__":
    main()
