"""A figure as part of a web page: inline SVG whose colours follow the page and whose text is real text.

Only attributes are rewritten, on the parsed tree, so that a label is never taken for markup.
"""

from __future__ import annotations

import io
import re
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.markers import MarkerStyle
from matplotlib.path import Path
from matplotlib.transforms import Affine2D

from drcl.lab.common.words import clean
from drcl.lab.report.figures import marks
from drcl.lab.report.figures.style import TONES, styled

_BY_COLOUR = {tone.light: f"var(--{tone.name})" for tone in TONES}
_DROPPED = (
    "metadata",
    "style",
)  # a style element would apply to the whole page, which has its own style


def inline_svg(figure: Figure, name: str, title: str, description: str) -> str:
    """The figure as an ``<svg>`` element; ``name`` starts every id inside and is unique on the page."""
    buffer = io.StringIO()
    with styled():
        mpl.rcParams["svg.fonttype"] = "none"  # keep text as text, so that it can be found, selected and read aloud
        marks.name_parts(figure)
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    root = ElementTree.fromstring(buffer.getvalue())
    _rewrite(root, name)
    box = root.attrib["viewBox"]
    width, height = box.split()[2:]
    for place in marks.places(figure):
        root.append(_place(place, float(width), float(height)))
    root.attrib.clear()
    root.attrib |= {
        "viewBox": box,
        "style": f"aspect-ratio: {width} / {height}",
        "role": "img",
        "aria-labelledby": f"{name}-title {name}-desc",
    }
    for index, (tag, words) in enumerate((("title", title), ("desc", description))):
        element = ElementTree.Element(tag, id=f"{name}-{tag}")
        element.text = clean(words)
        root.insert(index, element)
    return ElementTree.tostring(root, encoding="unicode")


_REACH = 7.0  # radius around a mark in which the pointer selects it, in points


def _place(place: marks.Place, width: float, height: float) -> ElementTree.Element:
    """An invisible area above everything else. Its words are a title, which a browser shows without any script."""
    x, y = place.x * width, place.y * height
    if place.width:
        numbers = {"x": x, "y": y, "width": place.width * width, "height": place.height * height}
        element = ElementTree.Element("rect", {key: f"{value:.1f}" for key, value in numbers.items()})
    else:
        element = ElementTree.Element("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r=f"{_REACH:g}")
    element.attrib["class"] = "hit"
    if place.key:
        element.attrib["data-m"] = place.key
    ElementTree.SubElement(element, "title").text = clean(place.words)
    return element


def _rewrite(element: ElementTree.Element, name: str) -> None:
    element.tag = _local(element.tag)
    attributes = {_local(key): value for key, value in element.attrib.items()}
    element.attrib.clear()
    for key, value in attributes.items():
        if key == "id":
            method = marks.key_of(value)
            if method is not None:
                element.attrib["data-m"] = method
                continue
            value = f"{name}-{value}"
        elif key == "href":
            value = value.replace("#", f"#{name}-", 1) if value.startswith("#") else value
        elif key == "style":
            value = re.sub(r"#[0-9a-f]{6}\b", lambda found: _BY_COLOUR.get(found[0], found[0]), value)
            value = re.sub(r"\s*font-family:[^;]*;?", "", value)
        element.attrib[key] = value.replace("url(#", f"url(#{name}-")
    for child in list(element):
        if _local(child.tag) in _DROPPED:
            element.remove(child)
        else:
            _rewrite(child, name)


def _local(name: str) -> str:
    return name.rpartition("}")[2]


_LETTERS = {Path.MOVETO: "M", Path.LINETO: "L", Path.CURVE3: "Q", Path.CURVE4: "C", Path.CLOSEPOLY: "Z"}


def marker_path(marker: Any) -> str:
    """A marker's outline for the ``d`` of a path, two units wide about (0, 0), as it is drawn in the figures."""
    drawn = MarkerStyle(marker)
    shape = drawn.get_path().transformed(drawn.get_transform())
    shape = shape.transformed(Affine2D().scale(1 / np.abs(shape.vertices).max(), -1 / np.abs(shape.vertices).max()))
    steps = []
    for points, code in shape.iter_segments(curves=True, simplify=False):
        numbers = "" if code == Path.CLOSEPOLY else " ".join(f"{value:.2f}" for value in points)
        steps.append(_LETTERS[code] + numbers)
    return "".join(steps)


def variables(dark: bool) -> str:
    """The colours of every figure as CSS custom properties."""
    return " ".join(f"--{tone.name}: {tone.dark if dark else tone.light};" for tone in TONES)
