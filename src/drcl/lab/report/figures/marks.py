"""What a page needs to know of a figure: which parts belong to which method, and which words to show at which place.

A figure without a page (a file for a paper) is drawn in the same way; nothing here changes how it looks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from drcl.lab.report.figures.style import Look

_PREFIX = "method:"
_owners: WeakKeyDictionary[Artist, str] = WeakKeyDictionary()


def belongs(look: Look, *artists: Artist) -> None:
    """Mark parts of the figure that are hidden together with their method."""
    for artist in artists:
        _owners[artist] = look.key


def name_parts(figure: Figure) -> None:
    """Give the parts that belong to a method an id that names it, see `key_of`; only a page needs them."""
    for number, artist in enumerate(figure.findobj()):
        if artist in _owners:
            artist.set_gid(f"{_PREFIX}{_owners[artist]}:{number}")


def key_of(name: str) -> str | None:
    """The method's key, from an id that `name_parts` gave; None for any other id."""
    return name.split(":")[1] if name.startswith(_PREFIX) else None


@dataclass(frozen=True)
class Place:
    """A place on a figure with its words, as fractions of the figure's width and height from the top left."""

    x: float
    y: float
    width: float  # 0: a point
    height: float
    words: str
    key: str  # the key of the method, or empty


_Noted = tuple[Axes, float, float, float, float, str, str]
_places: WeakKeyDictionary[Figure, list[_Noted]] = WeakKeyDictionary()


def says(ax: Axes, x: float, y: float, words: str, key: str = "", size: tuple[float, float] = (0.0, 0.0)) -> None:
    """Point at (x, y), or into the rectangle of this size from there, in data coordinates: ``words`` appear."""
    figure = ax.get_figure(root=True)
    assert figure is not None
    _places.setdefault(figure, []).append((ax, x, y, *size, words, key))


def places(figure: Figure) -> Iterator[Place]:
    """Every place of a drawn figure, in the order in which they were noted; before drawing, the layout is not known."""
    across, down = figure.bbox.width, figure.bbox.height
    for ax, x, y, width, height, words, key in _places.get(figure, []):
        (x0, y0), (x1, y1) = ax.transData.transform([(x, y), (x + width, y + height)])
        left, top = min(x0, x1) / across, 1 - max(y0, y1) / down
        yield Place(left, top, abs(x1 - x0) / across, abs(y1 - y0) / down, words, key)
