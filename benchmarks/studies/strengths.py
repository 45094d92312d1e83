"""Accuracy against strength: the trials behind the solver study as one figure.

    python -m benchmarks.studies.strengths [--out docs/figures/solver/strengths.png]

Every point is one trial of `solver.py` on the validation data of the first three tasks; trials that diverged have none.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from pathlib import Path

from benchmarks.studies.records import trials
from matplotlib.lines import Line2D

from drcl.lab.report.figures import style

COLOURS = ("#0072b2", "#c98500", "#7c8593", "#3a98d0", "#d55e00", "#b0578d", "#882255")
BOARDS = ("mnist-permuted", "cifar10-split", "cifar100-10")
VARIANTS = {
    "forward-backward": "weights, L1",
    "l2": "weights, L2",
    "reflected": "weights, L1, reflected",
    "per-task": "weights, L1, own mean",
    "kronecker": "directions, L2",
    "kronecker-l1": "directions, L1",
    "kronecker-task": "directions, own mean",
}


def points(rows: Iterable[Mapping[str, str]]) -> list[tuple[float, float]]:
    found = [(row["value"], row["validation_accuracy"]) for row in rows]
    return sorted((float(value), 100 * float(score)) for value, score in found if score)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/figures/solver/strengths.png"))
    args = parser.parse_args()
    there = trials("solver")
    with style.styled():
        figure, axes = style.panels(BOARDS)
        handles = {}
        for ax, board in zip(axes, BOARDS):
            for k, (variant, label) in enumerate(VARIANTS.items()):
                rows = there.get(f"{board}/{variant}")
                if rows is None:
                    continue
                dash = "-" if variant.startswith("kronecker") else (0, (4, 1.5))
                look = {"color": COLOURS[k], "marker": "osD^vPX"[k], "linestyle": dash}
                ax.plot(*zip(*points(rows)), **look)
                handles[label] = Line2D([], [], **look)
            ax.set_xscale("log")
            ax.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
            ax.set_xlabel("strength")
        axes[0].set_ylabel("validation accuracy, %")
        style.text_legend(figure, list(handles.values()), list(handles), columns=2)
        print(style.save(figure, args.out))


if __name__ == "__main__":
    main()
