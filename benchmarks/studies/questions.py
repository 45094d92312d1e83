"""What the solver study answers: pairs of its variants side by side, and how many directions are worth their cost."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.studies.compared import solver_rows, spread
from benchmarks.studies.records import measured, runs, table

from drcl.lab.runs.read import Run

BENCHMARKS = {
    "mnist-permuted": "permuted MNIST, 10 tasks",
    "cifar10-split": "CIFAR-10, 5 tasks",
    "cifar100-10": "CIFAR-100, 10 tasks",
}
PAIRS = {
    "directions, or weights": ("kronecker-task", "per-task"),
    "directions with nothing tuned, or EWC tuned": ("kronecker-default", "ewc"),
    "L1, or L2, weight by weight": ("forward-backward", "l2"),
    "L1, or L2, along directions": ("kronecker-l1", "kronecker"),
    "reflection, or a plain proximal gradient": ("reflected", "forward-backward"),
    "the same without momentum": ("reflected-plain", "forward-backward-plain"),
    "the implicit step, or five explicit ones per batch": ("implicit-plain", "five-a-batch"),
    "k = 5 on each batch, or k = 1 and five epochs": ("five-a-batch", "one-a-batch-five-epochs"),
    "five negotiations per epoch, or one per batch": ("five-rounds", "forward-backward"),
    "momentum 0.9, or none and five times the rate": ("forward-backward", "forward-backward-plain"),
    '`preset="paper"` (strength 10), or a tuned strength': ("paper", "forward-backward"),
    "`stable=0.5`, or a tuned strength": ("stable-50", "forward-backward"),
    "importance of the latest task, or of all": ("latest", "forward-backward"),
    "each task divided by its own mean, or the sum by one": ("per-task", "forward-backward"),
    "one mean per tensor, or one for the network": ("per-tensor", "forward-backward"),
}


def pairs() -> str:
    """One question per row, the better answer in bold."""
    there = {name: solver_rows(name) for name in BENCHMARKS}
    body = []
    for question, names in PAIRS.items():
        cells = []
        for rows in there.values():
            two = [rows.get(name) for name in names]
            if None in two:
                cells.append("")
                continue
            best = max(float(row["accuracy"]) for row in two if row)
            told = [(spread(row), float(row["accuracy"]) == best) for row in two if row]
            cells.append(", ".join(f"**{text}**" if wins else text for text, wins in told))
        body.append([question, *cells])
    return table(["average accuracy, %", *BENCHMARKS.values()], body)


def half_width(place: str, **options: object) -> Sequence[Run]:
    """Runs on CIFAR-100 at half width whose options are these."""
    found = [run for run in runs(f"cifar100-10/{place}.jsonl") if run.method == "drcl-kronecker"]
    return [run for run in found if options.items() <= run.options("method_options").items()]


def ranks() -> str:
    """Accuracy with fewer directions, of inputs and outputs alike, and with fewer negotiations."""
    mnist = solver_rows("mnist-permuted")
    own, every = "each task's own mean", "every direction, every 10 steps"
    first = [run for run in half_width("compared") if run.seed == 0]
    seldom, last = "every direction, every 32 steps", half_width("others", plasticity_steps=32)
    rows: list[tuple[str, str, Sequence[Run]]] = [
        ("256 directions, every 10 steps", "kronecker-default", half_width("as-it-comes")),
        (every, "kronecker-all", half_width("all-directions")),
        ("128 directions, every 10 steps", "kronecker-128", half_width("others", rank=128)),
        ("64 directions, every 10 steps", "kronecker-64", []),
        (f"{every}, {own}", "kronecker-task", first),
        (f"{seldom}, {own}", "kronecker-task-32", last),
    ]
    body = []
    for name, variant, some in rows:
        cells = [measured(some, "average_accuracy"), measured(some, "backward_transfer")]
        body.append([name, spread(mnist[variant], 2), *cells, len(some) or ""])
    head = ["", "permuted MNIST, %", "CIFAR-100 at half width, %"]
    return table([*head, "backward transfer there, points", "seeds there"], body)


HELD = {
    "sgd": "plain SGD",
    "forward-backward": "strength tuned",
    "stable-50": "`stable=0.5`",
    "stable-80": "`stable=0.8`",
    "stable-95": "`stable=0.95`",
}


def stable() -> str:
    """Accuracy when a share of the weights is held, and how many stayed within 5 per cent of where they were."""
    there = {name: solver_rows(name) for name in BENCHMARKS}
    body = []
    for variant, words in HELD.items():
        cells = [(spread(rows[variant]), float(rows[variant]["within"])) for rows in there.values()]
        body.append([words, *(f"{accuracy} ({within:.0f} % stayed)" for accuracy, within in cells)])
    return table(["average accuracy, %", *BENCHMARKS.values()], body)


TABLES = {"pairs": pairs, "ranks": ranks, "stable": stable}
