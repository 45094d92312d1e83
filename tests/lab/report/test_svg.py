"""A figure as a piece of a web page."""

from xml.etree import ElementTree

from tests.lab.report.fake_runs import R0, write_run

from drcl.lab.report.figures import accuracy_curves, cost, style
from drcl.lab.report.svg import inline_svg, variables
from drcl.lab.runs import read


def test_inline_svg_names_its_colours_and_keeps_its_ids_apart(small):
    svg = inline_svg(accuracy_curves.draw(small), "one", "A <title>", 'with "words" & more')
    root = ElementTree.fromstring(svg)
    assert root.find("title").text == "A <title>"
    assert root.find("desc").text == 'with "words" & more'
    assert root.attrib["role"] == "img"
    assert "var(--amber)" in svg
    assert style.OWN["sgd"].light not in svg
    ids = [element.attrib["id"] for element in root.iter() if "id" in element.attrib]
    assert len(ids) == len(set(ids))
    assert all(name.startswith("one-") for name in ids)
    for element in root.iter():
        for value in element.attrib.values():
            if "url(#" in value:
                assert value.split("url(#")[1].rstrip(")") in ids
    assert "--amber: #" in variables(dark=False)


def test_labels_are_never_markup(tmp_path):
    name = "<b>$x_1$ #c98500 url(#a)"
    write_run(tmp_path, name, 0, R=R0, name="odd")
    svg = inline_svg(cost.draw(read.find([tmp_path])), "n", "t", "d")
    words = "".join(ElementTree.fromstring(svg).itertext())
    assert name in words or style.short(name) in words
