"""Why does the default forget at all? How far old answers move, and how much of that importance foresees.

    python -m benchmarks.studies.moved [--problems mlp-256 ...] [--seeds 0 1 2]

runs what results/untold/moved.csv lacks; `make tables` writes the table from it. The networks are those of
`benchmarks.studies.untold`. After the second task, the movement of the first task's logits since its end is divided:

    foreseen      what the importance of the weights that moved adds up to
    first order   the logits' derivative along the move, by a central difference in double precision
    in all        the logits now, minus the logits then

Each is a mean square, about the mean of the logits, on the first task's training data.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import warnings
from typing import Any

import torch
from benchmarks.studies.records import RESULTS, add, rows, table
from benchmarks.studies.untold import PROBLEMS, SAMPLES, learn, optimizer
from torch import Tensor, nn

import drcl

RUNS = RESULTS / "untold" / "moved.csv"
FIELDS = ("problem", "seed", "foreseen", "first", "moved")
CHOSEN = ("toy", "mlp-48", "mlp-256", "deep", "adam-128", "lstm", "transformer")
STEP = 1e-4  # of the central difference, as a share of the move


def size(logits: Tensor) -> float:
    """Mean square about the mean of each sample's logits; they have one number fewer than there are logits."""
    about = logits - logits.mean(-1, keepdim=True)
    return float(about.square().sum(-1).mean()) / (logits.shape[-1] - 1)


@torch.no_grad()
def taken_apart(net: nn.Module, then: nn.Module, x: Tensor) -> tuple[float, float]:
    """First order, and in all."""
    now, then, there, back = (copy.deepcopy(m).double().eval() for m in (net, then, then, then))
    for a, b, forth, behind in zip(*(m.parameters() for m in (now, then, there, back))):
        forth.add_(a - b, alpha=STEP)
        behind.sub_(a - b, alpha=STEP)
    x = x.double()
    return size((there(x) - back(x)) / (2 * STEP)), size(now(x) - then(x))


def run(problem: str, seed: int) -> dict[str, Any]:
    _, make_data, make_net, lr, epochs = PROBLEMS[problem]
    torch.manual_seed(seed)
    net, (first, second, *_) = make_net(), make_data(seed)
    opt = optimizer(net, lr, "auto")
    learn(net, opt, first, epochs, seed, 0)
    x, y = first[:2]
    assert isinstance(opt, drcl.DRCL)
    opt.consolidate(net, list(zip(x.split(100), y.split(100))), drcl.Kronecker(samples=SAMPLES))
    then = copy.deepcopy(net)
    learn(net, opt, second, epochs, seed, 1)
    # The penalty is half of strength times importance times squared move.
    foreseen = 2 * opt.penalty() / opt.strengths[0]
    found = (foreseen, *taken_apart(net, then, x))
    return {"problem": problem, "seed": seed} | {name: f"{value:.5f}" for name, value in zip(FIELDS[2:], found)}


def markdown() -> str:
    found: dict[str, list[dict[str, str]]] = {}
    for row in rows(RUNS):
        found.setdefault(row["problem"], []).append(row)
    body = []
    for name, some in found.items():
        foreseen, first, moved = (statistics.fmean(float(row[key]) for row in some) for key in FIELDS[2:])
        values = (f"{v:.2g}" if v < 0.1 else f"{v:.2f}" for v in (foreseen, first, moved))
        body.append([PROBLEMS[name][0], str(len(some)), *values])
    return table(["network", "seeds", "foreseen", "first order", "in all"], body)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", nargs="+", choices=PROBLEMS, default=list(CHOSEN))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    done = {(row["problem"], row["seed"]) for row in rows(RUNS)}
    for problem in args.problems:
        for seed in args.seeds:
            if (problem, str(seed)) not in done:
                row = run(problem, seed)
                print(*row.values(), flush=True)
                add(RUNS, FIELDS, [row])


if __name__ == "__main__":
    main()
