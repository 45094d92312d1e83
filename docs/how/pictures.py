"""The pictures of this folder: small problems in two weights, computed here and drawn.

python docs/how/pictures.py     # writes splitting.svg, why-a-prox.svg, directions.svg and units.svg here
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

HERE = Path(__file__).parent
BLUE, RED, GREY, GREEN = "#0072b2", "#d55e00", "#777777", "#009e73"
STYLE = {
    "svg.hashsalt": "drcl",  # the same bytes every time
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "white",
    "legend.frameon": False,
}


def soft(r: np.ndarray, anchor: np.ndarray, threshold: np.ndarray) -> np.ndarray:
    """The prox of L1: a way shorter than the threshold is not taken."""
    d = r - anchor
    return np.where(np.abs(d) > threshold, r - np.sign(d) * threshold, anchor)


def path(step: Callable[[np.ndarray], np.ndarray], start: np.ndarray, steps: int) -> np.ndarray:
    way = [start]
    for _ in range(steps):
        way.append(step(way[-1]))
    return np.array(way)


def contours(
    ax: Axes, curvature: np.ndarray, at: np.ndarray, colour: str, levels: list[float], style: str = "-"
) -> None:
    """Level lines of (w - at)' curvature (w - at) / 2."""
    x, y = np.meshgrid(np.linspace(-0.6, 2.6, 200), np.linspace(-0.8, 1.9, 200))
    d = np.stack([x - at[0], y - at[1]], -1)
    ax.contour(
        x, y, np.einsum("...i,ij,...j", d, curvature, d) / 2, levels, colors=colour, linewidths=0.8, linestyles=style
    )


def plane(ax: Axes, title: str) -> None:
    ax.set(xlabel="weight 1", ylabel="weight 2", title=title, xlim=(-0.6, 2.6), ylim=(-0.8, 1.9), aspect="equal")
    ax.set_xticks([])
    ax.set_yticks([])


def splitting() -> Figure:
    """SGD walks to the new task's minimum; the negotiated path leaves the important weight where it was."""
    curvature, best, anchor = np.array([[1.0, 0.3], [0.3, 1.2]]), np.array([1.9, 1.1]), np.zeros(2)
    gamma, hold = 0.15, np.array([0.05, 2.2])  # strength times importance: the second weight matters

    def gradient(w: np.ndarray) -> np.ndarray:
        return curvature @ (w - best)

    fig, axes = plt.subplots(1, 2, figsize=(7.2, 3.3), layout="constrained")
    walks = (
        ("SGD", path(lambda w: w - gamma * gradient(w), anchor, 25), RED),
        ("DRCL", path(lambda w: soft(w - gamma * gradient(w), anchor, gamma * hold), anchor, 25), BLUE),
    )
    ax = axes[0]
    contours(ax, curvature, best, GREY, [0.05, 0.2, 0.5, 1.0, 1.7])
    for name, way, colour in walks:
        ax.plot(*way.T, "o-", color=colour, markersize=3, linewidth=1.2, label=name)
    ax.plot(*anchor, "s", color="black", markersize=6)
    ax.annotate("anchor", anchor, (-0.3, -0.3))
    ax.annotate("best for the new task", best, (1.0, 1.55))
    plane(ax, "two paths to the new task")
    ax.legend(loc="lower right")

    ax = axes[1]
    y = np.array([0.5, 0.0])
    x = y - 3 * gamma * gradient(y)
    z = soft(x, anchor, 3 * gamma * hold)
    for name, point, colour, at in (("y", y, "black", (-12, -12)), ("x", x, RED, (6, 2)), ("z", z, BLUE, (6, -12))):
        ax.plot(*point, "o", color=colour)
        ax.annotate(name, point, at, textcoords="offset points", color=colour, fontsize=12)
    arrow = {"arrowstyle": "->", "linewidth": 1.4, "shrinkA": 3, "shrinkB": 3}
    ax.annotate("", x, y, arrowprops=arrow | {"color": RED})
    ax.annotate("", z, x, arrowprops=arrow | {"color": BLUE})
    ax.axhline(0, color=GREY, linewidth=0.8, linestyle=":")
    ax.text(-0.5, 0.9, "plasticity:\na gradient step", color=RED, fontsize=8)
    ax.text(1.45, 0.42, "stability:\nthe prox", color=BLUE, fontsize=8)
    ax.text(1.3, -0.5, "weight 2 at its anchor", color=GREY, fontsize=8)
    plane(ax, "one step, enlarged")
    return fig


def why_a_prox() -> Figure:
    """What a prox lets through; and a penalty in the loss that diverges where the prox cannot."""
    fig, axes = plt.subplots(1, 2, figsize=(7.2, 3.1), layout="constrained")
    proposed = np.linspace(-2, 2, 401)
    ax = axes[0]
    ax.plot(proposed, proposed, ":", color=GREY, label="SGD: all of it")
    ax.plot(proposed, proposed / 1.7, color=GREEN, label="L2: a share of it")
    ax.plot(proposed, soft(proposed, np.zeros(401), np.full(401, 0.7)), color=BLUE, label="L1: only what is large")
    ax.set(xlabel="change that the new task proposes", ylabel="change that passes", title="what a prox lets through")
    ax.legend(fontsize=8)
    ax = axes[1]
    lr, steps = 0.02, np.arange(41)
    for strength, colour in ((90, GREEN), (101, RED), (110, "#cc79a7")):
        ax.plot(
            steps, np.abs(1 - lr * strength) ** steps, color=colour, label=f"penalty in the loss, strength {strength}"
        )
    ax.plot(steps, (1 / (1 + lr * 101)) ** steps, color=BLUE, linewidth=2, label="prox, strength 101")
    ax.set_yscale("log")
    ax.set(
        ylim=(1e-6, 1e7), xlabel="steps", ylabel="distance to the anchor", title="the same penalty, taken in two ways"
    )
    ax.legend(fontsize=7, loc="upper left")
    return fig


def directions() -> Figure:
    """The old task's loss is a valley that is not parallel to the axes: weight by weight it looks like a bowl."""
    valley, anchor, best = np.array([[6.0, -5.2], [-5.2, 6.0]]), np.zeros(2), np.array([2.0, 1.3])
    gamma, strength = 0.02, 1.0
    diagonal = np.diag(valley)
    values, basis = np.linalg.eigh(valley)

    def along_weights(w: np.ndarray) -> np.ndarray:
        return anchor + (w - gamma * (w - best) - anchor) / (1 + gamma * strength * diagonal)

    def along_directions(w: np.ndarray) -> np.ndarray:
        turned = basis.T @ (w - gamma * (w - best) - anchor)
        return anchor + basis @ (turned / (1 + gamma * strength * values))

    fig, axes = plt.subplots(1, 2, figsize=(7.2, 3.3), layout="constrained")
    for ax, step, held, title in (
        (axes[0], along_weights, np.diag(diagonal), "weight by weight"),
        (axes[1], along_directions, valley, "along directions"),
    ):
        contours(ax, valley, anchor, GREY, [0.25, 1.0])
        contours(ax, held, anchor, BLUE, [0.25, 1.0], "--")
        way = path(step, anchor, 400)
        ax.plot(*way.T, color=RED, linewidth=2)
        ax.plot(*way[-1], "o", color=RED)
        ax.plot(*best, "*", color=RED, markersize=10)
        ax.plot(*anchor, "s", color="black", markersize=5)
        ax.annotate("best for the\nnew task", best, (1.75, 1.42), fontsize=8)
        plane(ax, title)
    axes[0].text(-0.55, 1.5, "grey: loss of the old task\nblue: what is protected", fontsize=8)
    return fig


def units() -> Figure:
    """What a strength means when the network grows and when tasks are added."""
    fig, axes = plt.subplots(1, 2, figsize=(7.2, 3.0), layout="constrained")
    width, tasks = np.linspace(1, 4, 50), np.arange(1, 11)
    ax = axes[0]
    ax.plot(width, width, color=GREEN, label='"task": divided by the mean')
    ax.plot(width, np.ones(50), color=BLUE, linewidth=2, label='"share": divided by the sum')
    ax.set(xlabel="size of the network, the rest idle", ylabel="hold on a weight in use", ylim=(0, 4.2))
    ax.set_title("a larger network")
    ax.legend(fontsize=8)
    ax = axes[1]
    ax.plot(tasks, np.ones(10), "o-", color=BLUE, label='"task" and "share"', markersize=4)
    ax.plot(tasks, 1 / tasks, "o-", color=RED, label='"global"', markersize=4)
    ax.set(xlabel="tasks learned", ylabel="hold on the first task", ylim=(0, 1.3), title="more tasks, all alike")
    ax.legend(fontsize=8)
    return fig


def main() -> None:
    with plt.rc_context(STYLE):
        for draw in (splitting, why_a_prox, directions, units):
            fig = draw()
            fig.savefig(HERE / f"{draw.__name__.replace('_', '-')}.svg", metadata={"Date": None})
            plt.close(fig)


if __name__ == "__main__":
    main()
