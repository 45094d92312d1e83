"""Colours, markers and dashes for up to 35 methods, each colour and each marker for one method only.

The first colours follow Okabe, Ito and Tol, so that colour-blind readers can separate them. The others lie as far from
these and from each other as the screen's colours allow (at least 0.1 in OKLab), with enough contrast to their ground.
Colours have names, so that a page can change them in dark mode.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from matplotlib.path import Path as Shape


@dataclass(frozen=True)
class Tone:
    """A colour by its name on a page, in the light and in the dark."""

    name: str
    light: str
    dark: str


INK = Tone("ink", "#1f2630", "#e6e9ee")
MUTED = Tone("muted", "#667080", "#98a2b3")
GRID = Tone("grid", "#e4e8ee", "#2a313c")

CARD = Tone("card", "#ffffff", "#191f27")  # the background of figures

# The first ones belong to the methods in nearly every comparison.
_BLUE = Tone("blue", "#0072b2", "#58b0ea")
_AMBER = Tone("amber", "#c98500", "#f0b43c")
_GREEN = Tone("green", "#009e73", "#3fcf9f")
_GREY = Tone("grey", "#7c8593", "#a9b1bd")
OWN = {"drcl": _BLUE, "sgd": _AMBER, "ewc": _GREEN, "joint": _GREY}

_FURTHER = (
    ("#c50124", "#e31705"),
    ("#805bfe", "#a066d6"),
    ("#18561b", "#50ba15"),
    ("#e833f9", "#f934f1"),
    ("#194d68", "#38988e"),
    ("#602d00", "#9e711e"),
    ("#167afa", "#27fdf7"),
    ("#6a5570", "#87718e"),
    ("#fe1363", "#fb397d"),
    ("#1e0479", "#6f8bed"),
    ("#207e27", "#25fb42"),
    ("#a005c2", "#ff7ef6"),
    ("#932601", "#e26b1b"),
    ("#9978cf", "#90faa8"),
    ("#54005c", "#cdf118"),
    ("#3125fd", "#4d69f4"),
    ("#d915a9", "#d21c92"),
    ("#52011a", "#f8c4aa"),
    ("#002ac0", "#0c82bf"),
    ("#d665cf", "#d65cbe"),
    ("#013305", "#3f9015"),
    ("#6e19d8", "#b101f1"),
    ("#bb0a71", "#c76171"),
    ("#854aa6", "#8a9c4a"),
)
PALETTE = (
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
    *(Tone(f"tone-{k}", light, dark) for k, (light, dark) in enumerate(_FURTHER)),
)


def _shape(*corners: tuple[float, float]) -> Shape:
    return Shape([*corners, corners[0]], closed=True)


_HOURGLASS = _shape((-1, -1), (1, -1), (-1, 1), (1, 1))
_BOW_TIE = _shape((-1, -1), (-1, 1), (1, -1), (1, 1))
_HOUSE = _shape((-0.8, -1), (0.8, -1), (0.8, 0.1), (0, 1), (-0.8, 0.1))
_ARROW = _shape((-0.35, -1), (0.35, -1), (0.35, 0), (1, 0), (0, 1), (-1, 0), (-0.35, 0))
MARKERS: tuple[Any, ...] = (
    *("o", "s", "D", "^", "v", "P", "X", "<", ">", "*", "p", "d", "h", "8"),
    *(_HOURGLASS, _BOW_TIE, _HOUSE, _ARROW),
    *((4, 1, 0), (4, 1, 45), (3, 1, 0), (3, 1, 180), (6, 1, 0), (8, 1, 0)),  # stars: number of rays, style, rotation
    *("+", "x", (5, 2, 0), (8, 2, 0), "1", "2", "3", "4", "|", "_", "H"),
)
DASHES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5)))
