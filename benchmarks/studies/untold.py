"""How much is lost by not choosing a strength? The study behind docs/how/units.md.

    python -m benchmarks.studies.untold [--problems mlp-256 ...] [--seeds 0 1 2]

runs what results/untold/runs.csv lacks; `make tables` writes the table from it.

Six tasks of permuted digits of scikit-learn (three tasks of Gaussian clusters for the toy), one head, on networks of
many kinds. Forms: plain fine-tuning, DRCL(strength="auto"), a third and three times the strength that it finds, the
same with one price for networks of every size, the same unit with the pull k fixed (what tuning could find), and the
presets "directions" and "weights" at their defaults. Judged on validation data; test digits are not touched.
"""

from __future__ import annotations

import argparse
import statistics
import warnings
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import torch
from benchmarks.studies.records import RESULTS, add, rows, table
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

import drcl
from drcl.splitting import auto

RUNS = RESULTS / "untold" / "runs.csv"
FIELDS = ("problem", "form", "seed", "average", "learned")
PULLS = (40, 150, 600)
FACTORS = {"auto/3": 1 / 3, "auto*3": 3.0}
FORMS = ("fine-tuning", "auto", *(f"k={k}" for k in PULLS), "directions", "weights")
SAME, AT = "same price", 3  # auto with one price, for networks of every size and any number of tasks
EVERY = (*FORMS, *FACTORS, SAME)
SAMPLES = 200
Data = tuple[Tensor, Tensor, Tensor, Tensor]


def permuted(seed: int) -> list[Data]:
    data, rng = load_digits(), np.random.default_rng([3, seed])
    order = np.random.default_rng(0).permutation(len(data.data))[:1500]
    x = torch.tensor((data.data[order] / 16 - 0.305) / 0.376, dtype=torch.float32)
    y = torch.tensor(data.target[order])
    views = [x if k == 0 else x[:, torch.from_numpy(rng.permutation(64))] for k in range(6)]
    return [(z[:1200], y[:1200], z[1200:], y[1200:]) for z in views]


def clusters(seed: int) -> list[Data]:
    """Three classes of three Gaussian clusters each, in other places in every task."""
    rng, found = np.random.default_rng([4, seed]), []
    for _ in range(3):
        centres = rng.normal(0, 1.5, (9, 20))
        which = rng.integers(0, 9, 900)
        x = torch.tensor(centres[which] + rng.normal(0, 1, (900, 20)), dtype=torch.float32)
        y = torch.tensor(which % 3)
        found.append((x[:600], y[:600], x[600:], y[600:]))
    return found


def mlp(width: int, layers: int = 2, norm: Callable[[int], nn.Module] | None = None) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        parts: list[nn.Module] = []
        for before in (64, *[width] * (layers - 1)):
            parts += [nn.Linear(before, width), *([norm(width)] if norm else []), nn.ReLU()]
        return nn.Sequential(*parts, nn.Linear(width, 10))

    return make


class Recurrent(nn.Module):
    """Rows of a picture are a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.head = nn.LSTM(8, 64, batch_first=True), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rows(x.view(-1, 8, 8))[0][:, -1])


class Attending(nn.Module):
    """The same sequence, read by two blocks of a transformer."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.rows, self.places = nn.Linear(8, width), nn.Parameter(0.1 * torch.randn(8, width))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(2)
        )
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.rows(x.view(-1, 8, 8)) + self.places
        for block in self.blocks:
            h = block(h)
        return self.head(h.mean(1))


def toy() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3))


# By name: what it is, the data, the network, the learning rate of AdamW (none: SGD, 0.02, momentum 0.9), epochs.
Problem = tuple[str, Callable[[int], list[Data]], Callable[[], nn.Module], float | None, int]
PROBLEMS: dict[str, Problem] = {
    "toy": ("clusters, 20-64-3", clusters, toy, None, 5),
    "mlp-48": ("MLP 48", permuted, mlp(48), None, 5),
    "mlp-256": ("MLP 256", permuted, mlp(256), None, 5),
    "mlp-256-short": ("MLP 256, one epoch", permuted, mlp(256), None, 1),
    "mlp-128-long": ("MLP 128, 20 epochs", permuted, mlp(128), None, 20),
    "deep": ("MLP 96, six layers", permuted, mlp(96, 5), None, 5),
    "batch-norm": ("MLP 128, BatchNorm", permuted, mlp(128, norm=nn.BatchNorm1d), None, 5),
    "layer-norm": ("MLP 128, LayerNorm", permuted, mlp(128, norm=nn.LayerNorm), None, 5),
    "adam-48": ("MLP 48, AdamW", permuted, mlp(48), 2e-3, 5),
    "adam-128": ("MLP 128, AdamW", permuted, mlp(128), 1e-3, 5),
    "adam-batch-norm": ("MLP 128, BatchNorm, AdamW", permuted, mlp(128, norm=nn.BatchNorm1d), 1e-3, 5),
    "lstm": ("LSTM 64, AdamW", permuted, Recurrent, 3e-3, 10),
    "transformer": ("transformer, AdamW", permuted, Attending, 2e-3, 10),
}


def optimizer(net: nn.Module, lr: float | None, form: str) -> torch.optim.Optimizer:
    preset = "auto" if form.startswith("k=") or form in (SAME, *FACTORS) else form
    named = list(net.named_parameters())
    if lr is not None:
        inner = torch.optim.AdamW(named, lr=lr)
        return inner if form == "fine-tuning" else drcl.DRCL.around(inner, preset=preset)
    if form == "fine-tuning":
        return torch.optim.SGD(named, lr=0.02, momentum=0.9)
    return drcl.DRCL(named, lr=0.02, momentum=0.9, preset=preset)


def changed(form: str) -> dict[str, Any]:
    """What a form changes in the automatic strength."""
    if form == SAME:
        return {"unforeseen": lambda opt: AT / auto.PRICE, "SPARE": 0.0}
    if form in FACTORS:
        factor, pull, price, most = FACTORS[form], auto.pull, auto.price, auto.most
        scaled = {"pull": lambda energy: factor * pull(energy), "most": lambda *told: factor * most(*told)}
        return {**scaled, "price": lambda opt: factor * price(opt)}
    return {"BELIEF": 0.0, "PRICE": 0.0, "PULL": float(form[2:])} if form.startswith("k=") else {"BELIEF": auto.BELIEF}


def learn(net: nn.Module, opt: torch.optim.Optimizer, data: Data, epochs: int, seed: int, task: int) -> None:
    """Train on one task."""
    (x, y, *_), rng = data, torch.Generator().manual_seed(1000 * seed + task)
    for _ in range(epochs):
        for part in torch.randperm(len(x), generator=rng).split(32):
            opt.zero_grad()
            F.cross_entropy(net(x[part]), y[part]).backward()
            opt.step()


def run(problem: str, form: str, seed: int) -> dict[str, Any]:
    _, make_data, make_net, lr, epochs = PROBLEMS[problem]
    torch.manual_seed(seed)
    net, tasks = make_net(), make_data(seed)
    opt = optimizer(net, lr, form)
    matrix = np.zeros((len(tasks), len(tasks)))
    with mock.patch.multiple(auto, **changed(form)):
        for t, data in enumerate(tasks):
            learn(net, opt, data, epochs, seed, t)
            x, y = data[:2]
            if isinstance(opt, drcl.DRCL):
                estimator = (drcl.Fisher if form == "weights" else drcl.Kronecker)(samples=SAMPLES)
                opt.consolidate(net, list(zip(x.split(100), y.split(100))), estimator)
            net.eval()
            with torch.no_grad():
                for u, (_, _, vx, vy) in enumerate(tasks[: t + 1]):
                    matrix[t, u] = 100 * float((net(vx).argmax(-1) == vy).float().mean())
            net.train()
    learned = float(np.mean(np.diag(matrix)))
    return dict(problem=problem, form=form, seed=seed, average=f"{matrix[-1].mean():.2f}", learned=f"{learned:.2f}")


# ---- the table


def markdown() -> str:
    """Average accuracy after the last task by form; in bold what nobody had to choose, and its regret."""
    found: dict[tuple[str, str], list[float]] = {}
    learned: dict[str, list[float]] = {}
    for row in rows(RUNS):
        found.setdefault((row["problem"], row["form"]), []).append(float(row["average"]))
        if row["form"] == "auto":
            learned.setdefault(row["problem"], []).append(float(row["learned"]))
    head = ["network", "seeds", "fine-tuning", "**auto**", "learned", "best fixed k", "regret", "directions", "weights"]
    lines = ["| " + " | ".join(head) + " |", "|---" * 2 + "|---:" * 7 + "|"]
    regrets, in_unit = [], []
    for name, (words, *_) in PROBLEMS.items():
        mean = {form: statistics.fmean(found[name, form]) for form in EVERY if (name, form) in found}
        if not set(mean) >= set(FORMS):
            continue
        best, at = max((mean[f"k={k}"], k) for k in PULLS)
        in_unit.append(max(0.0, best - mean["auto"]))
        regrets.append(max(mean.values()) - mean["auto"])
        cells = [words, str(len(found[name, "auto"])), f"{mean['fine-tuning']:.1f}", f"**{mean['auto']:.1f}**"]
        cells += [f"{statistics.fmean(learned[name]):.1f}", f"{best:.1f} ({at})", f"{regrets[-1]:.1f}"]
        cells += [f"{mean['directions']:.1f}", f"{mean['weights']:.1f}"]
        lines.append("| " + " | ".join(cells) + " |")
    if regrets:
        for whose, some in (("regret over all of them", regrets), ("the same, fixed k alone", in_unit)):
            said = f"mean {statistics.fmean(some):.1f}, worst {max(some):.1f}"
            lines.append(f"| {whose} | | | | | | {said} | | |")
    return "\n".join(lines)


def sensitivity() -> str:
    """Average accuracy after the last task at a third of the automatic strength, as it comes, and at three times it."""
    found: dict[tuple[str, str], list[float]] = {}
    for row in rows(RUNS):
        found.setdefault((row["problem"], row["form"]), []).append(float(row["average"]))
    forms = ("auto/3", "auto", "auto*3", SAME)
    body = [
        [words, *(f"{statistics.fmean(found[name, form]):.1f}" for form in forms)]
        for name, (words, *_) in PROBLEMS.items()
        if all((name, form) in found for form in forms)
    ]
    return table(["network", "a third", "as it comes", "three times", f"price {AT} for all"], body)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", nargs="+", choices=PROBLEMS, default=list(PROBLEMS))
    parser.add_argument("--forms", nargs="+", choices=EVERY, default=list(EVERY))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    done = {(row["problem"], row["form"], row["seed"]) for row in rows(RUNS)}
    for seed in args.seeds:
        for problem in args.problems:
            for form in args.forms:
                if (problem, form, str(seed)) in done:
                    continue
                row = run(problem, form, seed)
                print(*row.values(), flush=True)
                add(RUNS, FIELDS, [row])


if __name__ == "__main__":
    main()
