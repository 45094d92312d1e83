"""A grid of shares as coloured cells, with the percentage in each cell as long as it can be read."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from drcl.lab.report.figures import marks, style

_READABLE = 14  # columns
_VECTOR = 32  # beyond this many cells per side a picture is smaller than shapes


def cells(ax: Axes, values: np.ndarray, words: Callable[[int, int], str] | None = None) -> None:
    """Draw ``values`` in [0, 1], row 0 on top; NaN stays empty. ``words`` says what the cell (row, column) is."""
    rows, columns = values.shape
    if max(rows, columns) <= _VECTOR:
        for i, j in zip(*np.nonzero(~np.isnan(values))):
            # A little smaller than the cell, so that the background shows between them.
            colour = style.HEAT_MAP(float(values[i, j]))
            ax.add_patch(Rectangle((j + 0.03, i + 0.03), 0.94, 0.94, facecolor=colour, linewidth=0))
            if words is not None:
                marks.says(ax, j, i, f"{words(int(i), int(j))}: {100 * values[i, j]:.1f} %", size=(1.0, 1.0))
    else:
        picture = np.ma.masked_invalid(values)
        extent = (0, columns, rows, 0)
        ax.imshow(picture, cmap=style.HEAT_MAP, vmin=0, vmax=1, aspect="auto", interpolation="none", extent=extent)
    ax.set_xlim(0, columns)
    ax.set_ylim(rows, 0)
    ax.grid(False)
    for side in ax.spines.values():
        side.set_visible(False)
    if columns > _READABLE or rows > 2 * _READABLE:
        return
    for i, j in zip(*np.nonzero(~np.isnan(values))):
        share = float(values[i, j])
        # The numbers lie inside their cells, so the layout of the figure can ignore them.
        number = ax.text(j + 0.5, i + 0.5, f"{100 * share:.0f}", ha="center", va="center", fontsize=8)
        number.set(color=ink(share).light, in_layout=False)


def ticks(names: Sequence[str], limit: int = 16) -> tuple[list[float], list[str]]:
    """Positions in the middle of the cells and their names, thinned out where there are many."""
    step = max(1, -(-len(names) // limit))
    places = range(0, len(names), step)
    return [k + 0.5 for k in places], [names[k] for k in places]


def ink(share: float) -> style.Tone:
    """What can be read on a cell of this share, in the light and in the dark."""
    return style.ON_LOW if share < 0.59 else style.ON_HIGH
