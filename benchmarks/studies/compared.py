"""The tables of docs/results.md and of the README, from the runs and trials in results/."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from benchmarks.studies.records import (
    RESULTS,
    bold_best,
    measured,
    minus,
    percent,
    rows,
    runs,
    table,
    trials,
)

from drcl.lab.paper.matching import setting
from drcl.lab.runs.read import Run

NAMES = {
    "drcl-auto": "**DRCL, as it comes**",
    "drcl-kronecker": "DRCL, directions, tuned",
    "joint": "all tasks together",
    "sgp": "SGP",
    "gpm": "GPM",
    "drcl": "DRCL, weight by weight",
    "ewc": "EWC",
    "si": "SI",
    "sgd": "SGD",
}
# Rows of the solver study on permuted MNIST that stand for the methods above.
VARIANTS = {
    "drcl-auto": "auto",
    "drcl-kronecker": "kronecker",
    "joint": "joint",
    "sgp": "sgp",
    "gpm": "gpm",
    "drcl": "per-task",
    "ewc": "ewc",
    "si": "si",
    "sgd": "sgd",
}
HEAD = ("method", "seeds", "average accuracy, %", "backward transfer, points", "accuracy when learned, %")


TEN = ("cifar100-10/compared.jsonl", "cifar100-10/default.jsonl")


def by_method(*places: str) -> dict[str, list[Run]]:
    found: dict[str, list[Run]] = {}
    for place in places:
        for run in runs(place):
            found.setdefault(run.method, []).append(run)
    return found


def row(name: str, some: Sequence[Run]) -> tuple[float, list[str]]:
    """Its accuracy, by which rows are sorted, and its cells."""
    accuracy = statistics.mean(run.value("average_accuracy") for run in some)
    learned = "" if some[0].method == "joint" else measured(some, "learning_accuracy")
    cells = [measured(some, "average_accuracy"), measured(some, "backward_transfer"), learned]
    return accuracy, [name, str(len(some)), *cells]


def sorted_rows(found: list[tuple[float, list[str]]]) -> list[list[str]]:
    return [cells for _, cells in sorted(found, key=lambda each: -each[0])]


def cifar100(tasks: int) -> str:
    places = TEN if tasks == 10 else ("cifar100-20/runs.jsonl",)
    found = [row(NAMES[method], some) for method, some in by_method(*places).items()]
    return table(HEAD, sorted_rows(found))


def longer() -> str:
    """All tasks together, and DRCL as it comes, by epochs."""
    body = []
    for method, some in by_method(*TEN, "longer/runs.jsonl").items():
        found: dict[int, list[Run]] = {}
        for run in some if method in ("joint", "drcl-auto") else ():
            found.setdefault(int(setting(run, "epochs")), []).append(run)
        body += [[str(epochs), *row(NAMES[method], found[epochs])[1][:4]] for epochs in found]
    return table(("epochs per task", *HEAD[:4]), sorted(body, key=lambda cells: int(cells[0])))


def no_momentum() -> str:
    groups: dict[tuple[str, float], list[Run]] = {}
    for run in runs("cifar100-10/no-momentum.jsonl"):
        options = run.options("method_options")
        groups.setdefault((options["splitting"], options["strength"]), []).append(run)
    head = ("splitting", "strength", *HEAD[1:4], "unmoved within 5 %, %", "unmoved bit for bit, %")
    keys = ("average_accuracy", "backward_transfer", "effective_stability", "unmoved")
    body = [
        (splitting, strength, len(some), *(percent([float(run.result[key]) for run in some]) for key in keys))
        for (splitting, strength), some in groups.items()
    ]
    return table(head, sorted(body, key=lambda cells: cells[0], reverse=True))


def solver_rows(benchmark: str) -> dict[str, dict[str, str]]:
    return {row["variant"]: row for row in rows(RESULTS / "solver" / f"{benchmark}.csv")}


def spread(one: dict[str, str], digits: int = 1) -> str:
    """The accuracy of a row of the solver study."""
    behind = f" ± {float(one['deviation']):.{digits}f}" if one["deviation"] else ""
    return f"{float(one['accuracy']):.{digits}f}{behind}"


def transfer(one: dict[str, str]) -> str:
    return "" if one["transfer"] in ("", "nan") else minus(f"{float(one['transfer']):.1f}")


def mnist() -> str:
    there = solver_rows("mnist-permuted")
    named = {VARIANTS[method]: name for method, name in NAMES.items()}
    chosen = sorted(named, key=lambda variant: -float(there[variant]["accuracy"]))
    body = [(named[v], there[v]["seeds"], spread(there[v]), transfer(there[v])) for v in chosen]
    return table(HEAD[:4], body)


def readme() -> str:
    """Both benchmarks side by side: accuracy, and backward transfer in brackets."""
    there, cifar = solver_rows("mnist-permuted"), by_method(*TEN)

    def both(variant: str, some: Sequence[Run]) -> list[str]:
        lost = (
            transfer(there[variant]),
            minus(f"{statistics.mean(100 * r.value('backward_transfer') for r in some):.1f}"),
        )
        told = (spread(there[variant]), measured(some, "average_accuracy"))
        return [f"{accuracy} ({gone})" if gone not in ("", "nan") else accuracy for accuracy, gone in zip(told, lost)]

    found = [(NAMES[m], *both(VARIANTS[m], some)) for m, some in cifar.items()]
    head = ("average accuracy, % (backward transfer)", "permuted MNIST, 10 tasks", "CIFAR-100, 10 tasks")
    return table(head, sorted(found, key=lambda cells: -float(cells[1].split()[0])))


PUBLISHED = {"joint": "97.59", "si": "95.33", "ewc": "94.42", "lwf": "72.64", "sgd": "78.51"}


def vandeven() -> str:
    told = {
        "joint": "all tasks together",
        "drcl-auto": "**DRCL as it comes**",
        "drcl-kronecker": "DRCL, directions, strength {strength:g}",
        "lwf": "LwF",
        "sgd": "none (fine-tuning)",
        "si": "SI, c = {c:g}",
        "ewc": "online EWC, strength {lam:g}",
    }
    found = []
    for run in runs("reproduced/runs.jsonl"):
        if run.benchmark != "mnist-permuted-vandeven":
            continue
        options = run.options("method_options")
        name = told[run.method].format(**options)
        name += ', `normalise="global"`' if options.get("normalise") == "global" else ""
        _, cells = row(name, [run])
        found.append((run.value("average_accuracy"), [name, PUBLISHED.get(run.method, ""), *cells[2:4]]))
    return table(("method", "published", "average accuracy here, %", HEAD[3]), sorted_rows(found))


PROBLEMS = {
    "digits": ("permuted digits, 8 tasks", "MLP 256-256"),
    "mnist": ("permuted MNIST, 6 tasks", "MLP 256-256"),
    "cifar100": ("CIFAR-100, 6 tasks, three epochs", "HAT AlexNet, quarter width"),
    "cifar10": ("CIFAR-10, 5 tasks, two epochs", "HAT AlexNet, quarter width"),
    "fashion": ("Fashion-MNIST, 5 tasks", "MLP 256-256"),
    "omniglot": ("Omniglot, 8 tasks, ten epochs", "CNN"),
    "hwdb": ("handwritten Chinese characters, 5 tasks, one epoch", "reduced ResNet-18"),
}


def strengths(around: str = "") -> str:
    """Validation accuracy against strength, a row per problem."""
    there = trials("strengths")
    chosen = [name for name in PROBLEMS if around + name in there]
    values = sorted({float(trial["value"]) for name in chosen for trial in there[around + name]})
    body = []
    for name in chosen:
        scores = {float(t["value"]): 100 * float(t["validation_accuracy"]) for t in there[around + name]}
        body.append([*PROBLEMS[name], *bold_best([scores[value] for value in values])])
    return table(["problem", "network", *(f"{value:g}" for value in values)], body)


TABLES = {
    "cifar100-10": lambda: cifar100(10),
    "cifar100-20": lambda: cifar100(20),
    "longer": longer,
    "no-momentum": no_momentum,
    "mnist": mnist,
    "vandeven": vandeven,
    "strengths": strengths,
    "strengths-adam": lambda: strengths("adam-"),
    "readme": readme,
}
