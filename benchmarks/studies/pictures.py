"""Does the default also fit image networks? Nothing tuned against tuned strengths, on the laboratory's benchmarks.

    python -m benchmarks.studies.pictures [--problems cifar10 ...] [--seeds 100]

runs what results/pictures/runs.csv lacks; `make tables` writes the table from it. Each problem is run with SGD and
with Adam, by fine-tuning, by the default (`drcl-auto`), by the default with one price for all networks, and
by `drcl-kronecker` at three strengths a factor of ten apart, whose best is chosen in hindsight. All numbers are
accuracies on validation data; test images are not touched.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

from benchmarks.studies.records import RESULTS, add, rows, table

from drcl.lab.runs.config import RunConfig
from drcl.lab.runs.execute import execute
from drcl.lab.runs.read import Run
from drcl.splitting import auto

RUNS = RESULTS / "pictures" / "runs.csv"
NAMES = ("average_accuracy", "learning_accuracy")
FIELDS = ("problem", "optimizer", "form", "seed", "average", "learned")
QUARTER = {"model.width": 0.25}
# What it is, the benchmark, its options.
PROBLEMS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "fashion": ("Fashion-MNIST, 5 tasks, MLP", "fashion-split", {}),
    "mnist": ("permuted MNIST, 4 tasks, MLP", "mnist-permuted", {"benchmark.tasks": 4, "valid": 0.1}),
    "cifar10": ("CIFAR-10, 5 tasks, AlexNet", "cifar10-split", {**QUARTER, "epochs": 2}),
    "cifar10-bn": (
        "CIFAR-10, 5 tasks, AlexNet with BatchNorm",
        "cifar10-split",
        {**QUARTER, "epochs": 2, "model.norm": "per-task"},
    ),
    "cifar100": ("CIFAR-100, 6 tasks, AlexNet", "cifar100-10", {**QUARTER, "epochs": 3, "benchmark.tasks": 6}),
    "hwdb": ("Chinese characters, 5 tasks, ResNet, BatchNorm", "hwdb-10", {"epochs": 1, "benchmark.tasks": 5}),
    "hwdb-gn": (
        "Chinese characters, 5 tasks, ResNet, GroupNorm",
        "hwdb-10",
        {"epochs": 1, "benchmark.tasks": 5, "model.norm": "group"},
    ),
    "omniglot": ("Omniglot, 8 tasks, CNN", "omniglot-50", {"epochs": 10, "benchmark.tasks": 8, "valid": 0.2}),
}
OPTIMIZERS: dict[str, dict[str, Any]] = {"SGD": {}, "Adam": {"optimizer": "adam", "lr": 0.001}}
STRENGTHS = (0.0003, 0.003, 0.03)
SAME, AT = "same price", 3  # auto with one price, for networks of every size and any number of tasks
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "fine-tuning": ("sgd", {}),
    "auto": ("drcl-auto", {}),
    SAME: ("drcl-auto", {}),
    **{f"strength {s:g}": ("drcl-kronecker", {"strength": s}) for s in STRENGTHS},
}


def run(problem: str, optimizer: str, form: str, seed: int) -> dict[str, Any]:
    _, benchmark, own = PROBLEMS[problem]
    method, options = FORMS[form]
    given = {**own, **OPTIMIZERS[optimizer], **options, "evaluate_on": "valid", "evaluate_unseen": False}
    price = {"unforeseen": lambda opt: AT / auto.PRICE, "SPARE": 0.0} if form == SAME else {"PRICE": auto.PRICE}
    with TemporaryDirectory() as folder, mock.patch.multiple(auto, **price):
        config = RunConfig.make(benchmark, method, seed, {**given, "training.keep_checkpoint": False})
        execute(config, Path(folder) / "run")
        found = Run.read(Path(folder) / "run")
    values = {key: f"{100 * found.value(name):.2f}" for key, name in zip(FIELDS[4:], NAMES)}
    return {"problem": problem, "optimizer": optimizer, "form": form, "seed": seed, **values}


def markdown() -> str:
    """Average accuracy after the last task; in bold what nobody had to choose, and its regret."""
    found: dict[tuple[str, str, str], list[float]] = {}
    learned: dict[tuple[str, str], list[float]] = {}
    for row in rows(RUNS):
        found.setdefault((row["problem"], row["optimizer"], row["form"]), []).append(float(row["average"]))
        if row["form"] == "auto":
            learned.setdefault((row["problem"], row["optimizer"]), []).append(float(row["learned"]))
    body, regrets = [], []
    for problem, (words, *_) in PROBLEMS.items():
        for optimizer in OPTIMIZERS:
            some = {form: found.get((problem, optimizer, form)) for form in FORMS}
            if None in some.values():
                continue
            mean = {form: statistics.fmean(values) for form, values in some.items() if values}
            best, at = max((mean[f"strength {s:g}"], s) for s in STRENGTHS)
            regrets.append(max(0.0, best - mean["auto"]))
            cells = [words, optimizer, str(len(some["auto"] or ())), f"{mean['fine-tuning']:.1f}"]
            cells += [f"**{mean['auto']:.1f}**", f"{statistics.fmean(learned[problem, optimizer]):.1f}"]
            body.append([*cells, f"{best:.1f} ({at:g})", f"{regrets[-1]:.1f}", f"{mean[SAME]:.1f}"])
    if regrets:
        said = f"mean {statistics.fmean(regrets):.1f}, worst {max(regrets):.1f}"
        body.append(["regret over all of them", *[""] * 6, said, ""])
    head = ["problem", "around", "seeds", "fine-tuning", "**auto**", "learned", "best strength", "regret"]
    return table([*head, f"price {AT} for all"], body)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", nargs="+", choices=PROBLEMS, default=list(PROBLEMS))
    parser.add_argument("--optimizers", nargs="+", choices=OPTIMIZERS, default=list(OPTIMIZERS))
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[100])
    args = parser.parse_args()
    done = {tuple(row[key] for key in FIELDS[:4]) for row in rows(RUNS)}
    for seed in args.seeds:
        for problem in args.problems:
            for optimizer in args.optimizers:
                for form in args.forms:
                    if (problem, optimizer, form, str(seed)) not in done:
                        row = run(problem, optimizer, form, seed)
                        print(*row.values(), flush=True)
                        add(RUNS, FIELDS, [row])


if __name__ == "__main__":
    main()
