"""How every figure looks: one colour and marker per method, the same in all of them, and calm axes.

The colours are in ``palette``. Marker and dash separate methods a second time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, ListedColormap, to_hex
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D

from drcl.lab.report.figures.marks import belongs
from drcl.lab.report.figures.palette import CARD, DASHES, GRID, INK, MARKERS, MUTED, OWN, PALETTE, Tone
from drcl.lab.report.groups import Group
from drcl.lab.report.table import REFERENCES, rows
from drcl.lab.runs.read import Run

LEVELS = 51  # steps of a heat map: two points of accuracy each
_HEAT_LIGHT = ("#f0f4f9", "#9cc3e4", "#2a70ab", "#0b3f73")
_HEAT_DARK = ("#1b2430", "#1f4a72", "#3f8cca", "#c4e2fb")
_LIGHT_STEPS = LinearSegmentedColormap.from_list("light", _HEAT_LIGHT)
_DARK_STEPS = LinearSegmentedColormap.from_list("dark", _HEAT_DARK)
HEAT = tuple(
    Tone(f"heat-{k}", to_hex(_LIGHT_STEPS(k / (LEVELS - 1))), to_hex(_DARK_STEPS(k / (LEVELS - 1))))
    for k in range(LEVELS)
)
HEAT_MAP = ListedColormap([tone.light for tone in HEAT], name="drcl").with_extremes(bad=(0, 0, 0, 0))
ON_LOW = Tone("on-low", "#101820", "#f4f7fb")  # text on the pale end of the heat map, and on its strong end
ON_HIGH = Tone("on-high", "#fefefe", "#081018")

TONES = (INK, MUTED, GRID, CARD, OWN["joint"], *PALETTE, *HEAT, ON_LOW, ON_HIGH)

WIDTH, HEIGHT = 4.3, 3.0  # size of one panel in inches: readable on a phone, not too large on a desktop


@dataclass(frozen=True)
class Look:
    """How one method is drawn."""

    tone: Tone
    marker: Any
    dash: Any
    reference: bool
    key: str  # a safe name of the method for a page, because its own may contain any character

    @property
    def colour(self) -> str:
        return self.tone.light


_PLAIN = 11  # tones that are easy to distinguish; further lines also get another dash pattern


def looks(groups: Iterable[Group]) -> dict[str, Look]:
    """A look for each label. A known method keeps its colour, whatever else is drawn.

    Up to ``len(MARKERS)`` methods each have their own colour and marker.
    """
    methods = dict(sorted({g.label: g.method for g in groups}.items()))
    first: dict[str, str] = {}
    for label, method in methods.items():
        if method in OWN:
            first.setdefault(method, label)
    taken = {OWN[method] for method in first}
    free = [tone for tone in PALETTE if tone not in taken]
    found: dict[str, Look] = {}
    others = 0
    for index, (label, method) in enumerate(methods.items()):
        if first.get(method) == label:
            tone, dash = OWN[method], DASHES[0]
        else:
            tone, dash = free[others % len(free)], DASHES[(others // _PLAIN) % len(DASHES)]
            others += 1
        reference = method in REFERENCES
        marker = MARKERS[index % len(MARKERS)]
        found[label] = Look(tone, marker, DASHES[2] if reference else dash, reference, f"m{index}")
    return found


_RC: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "axes.labelcolor": MUTED.light,
    "axes.edgecolor": MUTED.light,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": GRID.light,
    "grid.linewidth": 0.8,
    "text.color": INK.light,
    "text.parse_math": False,  # show a dollar sign in a method's name as it is
    "xtick.color": MUTED.light,
    "ytick.color": MUTED.light,
    "xtick.labelcolor": MUTED.light,
    "ytick.labelcolor": MUTED.light,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "lines.markersize": 4,
    "svg.hashsalt": "drcl",  # the same runs give the same bytes
    "figure.constrained_layout.h_pad": 0.03,
    "figure.constrained_layout.w_pad": 0.03,
}


@contextmanager
def styled() -> Iterator[None]:
    """Draw and save in the style of this file, whatever the user's own settings are."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_RC)
        yield


_ABREAST = 3  # panels per row; with more, a figure would be too wide for a page


def panels(titles: Sequence[str], width: float = WIDTH, height: float = HEIGHT) -> tuple[Figure, list[Axes]]:
    """A figure with one panel per title, in rows of three; a single panel needs no title."""
    count = max(1, len(titles))
    across = min(count, _ABREAST)
    down = -(-count // across)
    figure = Figure(figsize=(width * across, height * down), layout="constrained")
    figure.patch.set_facecolor("none")
    axes = [figure.add_subplot(down, across, k + 1) for k in range(count)]
    for ax, title in zip(axes, titles):
        ax.patch.set_facecolor("none")
        if len(titles) > 1:
            ax.set_title(short(title, room=40), loc="left", color=INK.light)
    return figure, axes


def drawable(runs: Iterable[Run | Group]) -> list[Group]:
    """Groups with a finished run, in the order of the table."""
    return [row.group for row in rows(runs) if row.group is not None and row.group.finished]


def by_benchmark(groups: Iterable[Group]) -> dict[str, list[Group]]:
    found: dict[str, list[Group]] = {}
    for g in groups:
        found.setdefault(g.benchmark, []).append(g)
    return found


def nothing(figure: Figure, ax: Axes, sentence: str) -> Figure:
    """An empty figure says why it is empty."""
    ax.set_axis_off()
    ax.text(0.5, 0.5, sentence, ha="center", va="center", color=MUTED.light, transform=ax.transAxes)
    return figure


def spread(wanted: Mapping[str, float], gap: float) -> dict[str, float]:
    """Move labels apart until neighbours are ``gap`` apart, each as close as possible to its wanted place."""
    clusters: list[tuple[list[str], float]] = []  # members in order, and where the lowest one goes
    for name in sorted(wanted, key=lambda n: wanted[n]):
        members, start = [name], wanted[name]
        while clusters and clusters[-1][1] + gap * len(clusters[-1][0]) > start:
            members = clusters.pop()[0] + members
            start = sum(wanted[m] - gap * k for k, m in enumerate(members)) / len(members)
        clusters.append((members, start))
    return {m: start + gap * k for members, start in clusters for k, m in enumerate(members)}


_DIRECT = 6  # more names than this do not fit beside their lines
_NAME = 18  # letters of a name that fit beside a figure


def named_directly(labels: Sequence[str]) -> bool:
    """Whether names fit at their lines and points; otherwise they go into a legend below."""
    return len(labels) <= _DIRECT and all(len(label) <= 12 for label in labels)


def short(name: str, room: int = _NAME) -> str:
    """A name that fits: its middle is cut first, because layers and options differ at their ends."""
    return name if len(name) <= room else name[: room // 2 - 1] + "…" + name[-(room // 2) :]


def legend(figure: Figure, labels: Sequence[str], looks: Mapping[str, Look]) -> None:
    """A legend of methods below the panels, on its own background."""
    labels = list(dict.fromkeys(labels))
    handles: list[Any] = [
        Line2D([], [], color=looks[label].colour, linestyle=looks[label].dash, marker=looks[label].marker)
        for label in labels
    ]
    drawn = text_legend(figure, handles, labels, columns=2 if max(map(len, labels)) > 14 else 3)
    for label, line, words in zip(labels, drawn.get_lines(), drawn.get_texts()):
        belongs(looks[label], line, words)


def text_legend(figure: Figure, handles: Sequence[Any], labels: Sequence[str], columns: int) -> Legend:
    rows_needed = -(-len(labels) // columns)
    figure.set_figheight(figure.get_figheight() + 0.17 * rows_needed)
    return figure.legend(
        handles,
        [short(label, room=14 if columns > 2 else 24) for label in labels],
        loc="outside lower center",
        ncols=columns,
        fontsize=8,
        handlelength=1.6,
        columnspacing=1.2,
    )


def task_ticks(ax: Axes, tasks: int) -> None:
    """Tasks count from 1 for the reader; only about ten of them are numbered."""
    step = max(1, -(-tasks // 10))
    ax.set_xticks([t for t in range(0, tasks) if t % step == 0 or (t == tasks - 1 and (tasks - 1) % step > step / 2)])
    ax.set_xticklabels([str(int(t) + 1) for t in ax.get_xticks()])


def save(figure: Figure, path: str | Path) -> Path:
    """Write a figure as ``.svg`` or ``.png`` (on white, for papers and slides)."""
    path = Path(path)
    if path.suffix not in (".svg", ".png"):
        raise ValueError(f"{path.name} does not end in .svg or .png; name the format by the file's ending")
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {"Date": None} if path.suffix == ".svg" else {}
    with styled():
        figure.savefig(path, dpi=200, facecolor="white", metadata=metadata)
    return path
