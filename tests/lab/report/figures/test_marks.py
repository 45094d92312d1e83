"""Which parts of a figure belong to which method, and the texts of its marks."""

import io

import pytest
from matplotlib.figure import Figure

from drcl.lab.report.figures import marks, style
from drcl.lab.report.groups import Group


def test_a_place_is_found_where_it_was_noted():
    figure = Figure(figsize=(4, 2))
    ax = figure.add_axes((0.25, 0.5, 0.5, 0.25))  # left, bottom, width and height as shares of the figure
    ax.set_xlim(0, 10)
    ax.set_ylim(0, 100)
    marks.says(ax, 5, 100, "top", key="m1")
    marks.says(ax, 0, 0, "all", size=(10, 100))
    figure.savefig(io.BytesIO())
    point, area = marks.places(figure)
    assert (point.x, point.y) == pytest.approx((0.5, 0.25))
    assert (point.width, point.words, point.key) == (0, "top", "m1")
    assert (area.x, area.y, area.width, area.height) == pytest.approx((0.25, 0.25, 0.5, 0.25))
    assert list(marks.places(Figure())) == []


def test_parts_are_named_after_their_method_only_when_a_page_asks():
    figure = Figure()
    ax = figure.add_subplot()
    look = style.looks([Group("b", "sgd", "sgd", ())])["sgd"]
    (mine,), (other,) = ax.plot([0, 1]), ax.plot([1, 0])
    marks.belongs(look, mine)
    assert mine.get_gid() is None
    marks.name_parts(figure)
    assert marks.key_of(mine.get_gid()) == look.key
    assert other.get_gid() is None
    assert marks.key_of("line2d_1") is None
