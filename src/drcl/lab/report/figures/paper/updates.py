"""Figure of the paper: how large the updates of each layer were at each task, as one map per method."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from drcl.lab.report.figures import heat, style
from drcl.lab.report.figures.paper import needs, panel
from drcl.lab.report.groups import Group
from drcl.lab.runs.read import Run
from drcl.lab.training.changes import EDGES
from drcl.lab.training.rows import ChangeRow

TITLE = "Size of the updates"
CAPTION = (
    "|change| of the weights of each layer at each task (columns), one map per method and one scale for all. Within "
    "a layer the weights are sorted, those that went farthest at the bottom. The deepest blue is no change, or next "
    "to none. The first task, which starts from random weights, is left out."
)
NEEDS = "finished runs of two tasks or more with changes.csv"
NAME = "heat"
SHARES = 12  # rows of a layer
DECADES = 3  # the range of the colours


def changes(g: Group) -> tuple[list[str], np.ndarray]:
    """Layers, and |change| from the second task on, ``[layers, shares, tasks]``, averaged over seeds. The weights of a
    layer are sorted by how far they moved and cut into equal shares, of which the middle is taken."""
    runs = [run for run in g.finished if run.records.get("changes")]
    layers = list(dict.fromkeys(row.layer for run in runs for row in run.records["changes"]))
    tasks = sorted({row.task for run in runs for row in run.records["changes"] if row.task > 0})
    rows = SHARES if len(layers) <= 10 else SHARES // 2
    found = np.full((len(runs), len(layers), rows, len(tasks)), math.nan)
    for k, run in enumerate(runs):
        for row in run.records["changes"]:
            if row.task > 0:
                found[k, layers.index(row.layer), :, tasks.index(row.task)] = sizes(row, rows)
    return layers, found.mean(axis=0) if runs else np.empty((0, 0, 0))


def sizes(row: ChangeRow, rows: int) -> np.ndarray:
    """|change| in the middle of each share of the layer's sorted weights, as its bin tells it; 0 where they stayed."""
    ends = np.cumsum([row.unmoved, *row.counts])
    middles = np.array([0.0, EDGES[0] / 2, *np.sqrt(np.array(EDGES[:-1]) * EDGES[1:]), EDGES[-1]])
    places = (np.arange(rows) + 0.5) / rows * row.weights
    return middles[np.searchsorted(ends, places, side="right")]


def depth(values: np.ndarray, largest: float) -> np.ndarray:
    """From 0 for the largest change to 1 for none, by powers of ten."""
    with np.errstate(divide="ignore"):
        below = np.log10(largest) - np.log10(values)
    return np.clip(below / DECADES, 0, 1)


def draw(runs: Iterable[Run | Group]) -> Figure:
    """A map per method and benchmark."""
    groups = needs.groups_of(runs, NAME, NEEDS, lambda g: changes(g)[1].size > 0)
    several = len({g.benchmark for g in groups}) > 1
    maps = [changes(g) for g in groups]
    largest = max(float(np.nanmax(values)) for _, values in maps) or 1.0
    layers = max(len(names) for names, _ in maps)
    rows = -(-len(groups) // 4)
    columns = -(-len(groups) // rows)
    with style.styled():
        figure, axes = panel.grid(rows, columns, width=3.0, height=min(8.0, max(2.3, 0.9 + 0.28 * layers)))
        flat = [ax for row in axes for ax in row]
        for ax, g, (names, values) in zip(flat, groups, maps):
            _map(ax, depth(values.reshape(-1, values.shape[2]), largest))
            numbers = sorted({r.task + 1 for r in g.finished[0].records["changes"] if r.task > 0})
            ax.set_xticks(*heat.ticks([str(number) for number in numbers], limit=10))
            places, shown = heat.ticks([style.short(name) for name in names], limit=30)
            ax.set_yticks([place * values.shape[1] for place in places], shown)
            for k in range(1, len(names)):
                ax.axhline(k * values.shape[1], color=style.CARD.light, linewidth=1.2)
            ax.set_xlabel("task")
            panel.title(ax, f"{g.label}, {g.benchmark}" if several else g.label)
        for ax in flat[len(groups) :]:
            ax.set_axis_off()
        _scale(figure, flat, largest)
        return figure


def _map(ax: Axes, shares: np.ndarray) -> None:
    rows, columns = shares.shape
    if rows <= 48 and columns <= 32:  # shapes can follow the page's colours, but beyond this size a picture is smaller
        for i, j in zip(*np.nonzero(~np.isnan(shares))):
            colour = style.HEAT_MAP(float(shares[i, j]))
            ax.add_patch(Rectangle((j, i), 1, 1, facecolor=colour, edgecolor=colour, linewidth=0.3))
    else:
        extent = (0, columns, rows, 0)
        picture = np.ma.masked_invalid(shares)
        ax.imshow(picture, cmap=style.HEAT_MAP, vmin=0, vmax=1, aspect="auto", interpolation="none", extent=extent)
    ax.set_xlim(0, columns)
    ax.set_ylim(rows, 0)
    ax.grid(False)
    for side in ax.spines.values():
        side.set_visible(False)


def _scale(figure: Figure, axes: list[Axes], largest: float) -> None:
    """The meaning of the colours, to the right of all maps."""
    bar = figure.colorbar(ScalarMappable(Normalize(0, 1), style.HEAT_MAP), ax=axes, fraction=0.05, pad=0.015, aspect=16)
    bar.set_ticks([k / DECADES for k in range(DECADES + 1)])
    bar.set_ticklabels([f"{largest / 10**k:.1g}" for k in range(DECADES)] + [f"{largest / 10**DECADES:.1g} or less"])
    bar.set_label("|change|")
    bar.ax.invert_yaxis()
    bar.outline.set_visible(False)


def describe(runs: Iterable[Run | Group]) -> str:
    """What the picture shows, for readers who cannot see it."""
    parts = []
    for g in style.drawable(runs):
        _, values = changes(g)
        if values.size:
            parts.append(f"{g.label} leaves {100 * float((values == 0).mean()):.0f} percent unchanged")
    return "Heat maps of the size of updates per layer and task: " + "; ".join(parts) + "."
