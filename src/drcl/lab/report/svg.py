"""A figure as a piece of a web page: inline SVG whose colours follow the page and whose words are words.

Only attributes are rewritten, on the parsed tree, so that a label is never taken for markup.
"""

from __future__ import annotations

import io
import re
from xml.etree import ElementTree

import matplotlib as mpl
from matplotlib.figure import Figure

from drcl.lab.report.figures.style import TONES, styled

_BY_COLOUR = {tone.light: f"var(--{tone.name})" for tone in TONES}
_DROPPED = (
    "metadata",
    "style",
)  # a style element would apply to the whole page; the page has its rule itself


def inline_svg(figure: Figure, name: str, title: str, description: str) -> str:
    """The figure as an ``<svg>`` element; ``name`` starts every id inside and is unique on the page."""
    buffer = io.StringIO()
    with styled():
        mpl.rcParams["svg.fonttype"] = "none"  # letters stay letters: they are found, selected and read aloud
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    root = ElementTree.fromstring(buffer.getvalue())
    _rewrite(root, name)
    box = root.attrib["viewBox"]
    width, height = box.split()[2:]
    root.attrib.clear()
    root.attrib |= {
        "viewBox": box,
        "style": f"aspect-ratio: {width} / {height}",
        "role": "img",
        "aria-labelledby": f"{name}-title {name}-desc",
    }
    for place, (tag, words) in enumerate((("title", title), ("desc", description))):
        element = ElementTree.Element(tag, id=f"{name}-{tag}")
        element.text = words
        root.insert(place, element)
    return ElementTree.tostring(root, encoding="unicode")


def _rewrite(element: ElementTree.Element, name: str) -> None:
    element.tag = _local(element.tag)
    attributes = {_local(key): value for key, value in element.attrib.items()}
    element.attrib.clear()
    for key, value in attributes.items():
        if key == "id":
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


def variables(dark: bool) -> str:
    """The colours of every figure as CSS custom properties."""
    return " ".join(f"--{tone.name}: {tone.dark if dark else tone.light};" for tone in TONES)
