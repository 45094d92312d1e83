"""How every figure looks: one colour, marker and dash a method, the same in all of them, and calm axes.

The colours follow Okabe, Ito and Tol, so that they stay apart for colour-blind readers; marker and dash tell
methods apart a second time. Colours are known by a name, so that a page can change them in the dark.
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
from matplotlib.lines import Line2D

from drcl.lab.report.groups import Group
from drcl.lab.report.table import REFERENCES, rows
from drcl.lab.runs.read import Run


@dataclass(frozen=True)
class Tone:
    """A colour by its name on a page, in the light and in the dark."""

    name: str
    light: str
    dark: str


INK = Tone("ink", "#1f2630", "#e6e9ee")
MUTED = Tone("muted", "#667080", "#98a2b3")
GRID = Tone("grid", "#e4e8ee", "#2a313c")

CARD = Tone("card", "#ffffff", "#191f27")  # what figures lie on

# The first ones belong to the methods that nearly every comparison holds.
_BLUE = Tone("blue", "#0072b2", "#58b0ea")
_AMBER = Tone("amber", "#c98500", "#f0b43c")
_GREEN = Tone("green", "#009e73", "#3fcf9f")
_GREY = Tone("grey", "#7c8593", "#a9b1bd")
_PALETTE = (
    Tone("vermilion", "#d55e00", "#ff8f47"),
    Tone("purple", "#b0578d", "#e6a3c8"),
    Tone("sky", "#3a98d0", "#9bd6f7"),
    Tone("wine", "#882255", "#ec82ae"),
    Tone("olive", "#7d7d1c", "#cfcf62"),
    Tone("indigo", "#4b3fa8", "#ab9ff7"),
    Tone("teal", "#26837a", "#73d8cd"),
    Tone("brown", "#8c5a2b", "#c99a6b"),
    _GREEN,
    _BLUE,
    _AMBER,
)
_OWN = {"drcl": _BLUE, "sgd": _AMBER, "ewc": _GREEN, "joint": _GREY}
_MARKERS = ("o", "s", "D", "^", "v", "P", "X")
_DASHES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5)))

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

TONES = (INK, MUTED, GRID, CARD, _GREY, *_PALETTE, *HEAT, ON_LOW, ON_HIGH)

WIDTH, HEIGHT = 4.3, 3.0  # inches of one panel: its text is readable on a phone and not loud on a desk


@dataclass(frozen=True)
class Look:
    """How one method is drawn."""

    tone: Tone
    marker: str
    dash: Any
    reference: bool

    @property
    def colour(self) -> str:
        return self.tone.light


def looks(groups: Iterable[Group]) -> dict[str, Look]:
    """A look for each label. A known method keeps its colour whatever else is drawn beside it."""
    methods = dict(sorted({g.label: g.method for g in groups}.items()))
    first: dict[str, str] = {}
    for label, method in methods.items():
        if method in _OWN:
            first.setdefault(method, label)
    taken = {_OWN[method] for method in first}
    free = [tone for tone in _PALETTE if tone not in taken] or list(_PALETTE)
    found: dict[str, Look] = {}
    others = 0
    for index, (label, method) in enumerate(methods.items()):
        if first.get(method) == label:
            tone, dash = _OWN[method], _DASHES[0]
        else:
            tone, dash = free[others % len(free)], _DASHES[(others // len(free)) % len(_DASHES)]
            others += 1
        reference = method in REFERENCES
        found[label] = Look(tone, _MARKERS[index % len(_MARKERS)], _DASHES[2] if reference else dash, reference)
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
    "text.parse_math": False,  # a dollar sign in a method's name is a dollar sign
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


def panels(titles: Sequence[str], width: float = WIDTH, height: float = HEIGHT) -> tuple[Figure, list[Axes]]:
    """A figure with one panel a title, side by side; a single panel needs none."""
    figure = Figure(figsize=(width * max(1, len(titles)), height), layout="constrained")
    figure.patch.set_facecolor("none")
    axes = [figure.add_subplot(1, max(1, len(titles)), k + 1) for k in range(max(1, len(titles)))]
    for ax, title in zip(axes, titles):
        ax.patch.set_facecolor("none")
        if len(titles) > 1:
            ax.set_title(title, loc="left", color=INK.light)
    return figure, axes


def drawable(runs: Iterable[Run]) -> list[Group]:
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
    """Move labels apart until neighbours are ``gap`` apart, each staying as near to its wish as it can."""
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
    """Whether names fit at their lines and points; else a legend below holds them."""
    return len(labels) <= _DIRECT and all(len(label) <= 12 for label in labels)


def short(name: str, room: int = _NAME) -> str:
    """A name that fits: its middle goes first, for layers and options differ at their ends."""
    return name if len(name) <= room else name[: room // 2 - 1] + "…" + name[-(room // 2) :]


def legend(figure: Figure, labels: Sequence[str], looks: Mapping[str, Look]) -> None:
    """A legend of methods below the panels, on ground of its own."""
    labels = list(dict.fromkeys(labels))
    handles: list[Any] = [
        Line2D([], [], color=looks[label].colour, linestyle=looks[label].dash, marker=looks[label].marker)
        for label in labels
    ]
    text_legend(figure, handles, labels, columns=2 if max(map(len, labels)) > 14 else 3)


def text_legend(figure: Figure, handles: Sequence[Any], labels: Sequence[str], columns: int) -> None:
    rows_needed = -(-len(labels) // columns)
    figure.set_figheight(figure.get_figheight() + 0.17 * rows_needed)
    figure.legend(
        handles,
        [short(label, room=14 if columns > 2 else 24) for label in labels],
        loc="outside lower center",
        ncols=columns,
        fontsize=8,
        handlelength=1.6,
        columnspacing=1.2,
    )


def task_ticks(ax: Axes, tasks: int) -> None:
    """Tasks count from 1 for the reader; not more than some ten of them are numbered."""
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
