"""The picture of the README: average accuracy on the tasks seen so far, after each task, from the runs in results/.

python -m benchmarks.studies.picture     # writes docs/figures/accuracy.svg
"""

from __future__ import annotations

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
import numpy as np
from benchmarks.studies.records import ROOT, runs
from matplotlib.axes import Axes

from drcl.lab.runs import metrics

OUT = ROOT / "docs/figures/accuracy.svg"
PANELS = {
    "mnist-permuted/runs.jsonl": ("Permuted MNIST, MLP", (40, 100)),
    "cifar100-10/compared.jsonl": ("CIFAR-100 in ten tasks, AlexNet", (30, 60)),
}
CURVES = {
    "drcl-kronecker": ("DRCL, directions", "#d55e00", "s"),
    "drcl": ("DRCL, weight by weight", "#0072b2", "o"),
    "ewc": ("EWC", "#009e73", "D"),
    "sgd": ("SGD", "#777777", "^"),
}
STYLE = {
    "svg.hashsalt": "drcl",  # the same bytes every time
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "white",
    "legend.frameon": False,
}


def curve(place: str, method: str) -> np.ndarray:
    """Mean over seeds, in per cent."""
    seeds = [metrics.accuracy_curve(run.matrix) for run in runs(place) if run.method == method]
    return 100 * np.mean(seeds, axis=0)


def panel(ax: Axes, place: str) -> None:
    title, limits = PANELS[place]
    for method, (name, colour, marker) in CURVES.items():
        heights = curve(place, method)
        ax.plot(range(1, len(heights) + 1), heights, color=colour, marker=marker, markersize=4, label=name)
    together = np.mean([100 * run.value("average_accuracy") for run in runs(place) if run.method == "joint"])
    ax.axhline(together, color="black", linewidth=0.8, linestyle=":", label="all tasks together")
    ax.set(title=title, xlabel="tasks learned", xticks=range(1, len(heights) + 1), ylim=limits)
    ax.grid(axis="y", linewidth=0.4)


def main() -> None:
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(1, 2, figsize=(8.6, 3.5), layout="constrained")
        for ax, place in zip(axes, PANELS):
            panel(ax, place)
        axes[0].set_ylabel("average accuracy, %")
        handles, names = axes[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=5)
        figure.savefig(OUT, metadata={"Date": None})
    print(OUT.relative_to(ROOT))


if __name__ == "__main__":
    main()
