"""How every figure looks: colours that stay apart, words that can be read."""

import itertools
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.colors import to_rgb
from matplotlib.markers import MarkerStyle
from PIL import Image
from tests.lab.report.fake_runs import R0, write_run
from tests.lab.report.figures.looking import contrast

from drcl.lab.report import figures
from drcl.lab.report.figures import accuracy_curves, matrix, style
from drcl.lab.report.groups import Group, group
from drcl.lab.runs import read


def test_every_figure_saves_as_svg_and_png(runs, tmp_path):
    files = figures.save_all(runs, tmp_path / "figures")
    assert len([file for file in files if file.parent.name != "paper"]) == 2 * len(figures.FIGURES)
    # Runs without the smaller tables still allow two figures of the paper and the outline of a third.
    assert {file.stem for file in files if file.parent.name == "paper"} == {"fig1", "plas-stab", "matrix"}
    for file in files:
        if file.suffix == ".png":
            with Image.open(file) as image:
                assert image.getpixel((0, 0))[:3] == (255, 255, 255)
                assert len(image.convert("RGB").getcolors(1 << 20)) > 10
        else:
            ElementTree.parse(file)


def test_saving_twice_gives_the_same_bytes(small, tmp_path):
    a = style.save(accuracy_curves.draw(small), tmp_path / "a.svg").read_bytes()
    b = style.save(accuracy_curves.draw(small), tmp_path / "b.svg").read_bytes()
    assert a == b


def test_another_format_is_refused(small, tmp_path):
    with pytest.raises(ValueError, match=r"does not end in \.svg or \.png"):
        style.save(matrix.draw(small), tmp_path / "a.gif")


def test_a_method_keeps_its_colour_whoever_is_beside_it(runs, tmp_path):
    everyone = style.looks(group(runs))
    write_run(tmp_path / "more", "a-first-one", 0)
    write_run(tmp_path / "more", "drcl", 0)
    few = style.looks(group(read.find([tmp_path / "more"])))
    assert few["drcl"].tone == everyone["drcl"].tone
    assert few["a-first-one"].tone != few["drcl"].tone


def test_twenty_methods_can_be_told_apart(tmp_path):
    for k in range(20):
        write_run(tmp_path, f"method-{k:02d}", 0, R=R0)
    runs = read.find([tmp_path])
    looks = style.looks(group(runs))
    assert len({(look.tone, look.marker, str(look.dash)) for look in looks.values()}) == 20
    figure = accuracy_curves.draw(runs)
    assert len(figure.legends[0].get_texts()) == 20


def _drawn(marker):
    style = MarkerStyle(marker)
    shape = style.get_path().transformed(style.get_transform())
    return shape.vertices.round(3).tobytes(), None if shape.codes is None else shape.codes.tobytes()


@pytest.mark.parametrize("known", [(), ("drcl", "sgd", "ewc", "joint")])
def test_thirty_five_methods_have_a_colour_and_a_marker_each(known):
    names = [*known, *(f"method-{k:02d}" for k in range(35 - len(known)))]
    found = style.looks(Group("b", name, name, ()) for name in names).values()
    assert len({look.tone.light for look in found}) == 35
    assert len({look.tone.dark for look in found}) == 35
    assert len({_drawn(look.marker) for look in found}) == 35
    assert len({look.key for look in found}) == 35


def test_many_panels_wrap_instead_of_growing_wide(tmp_path):
    for k in range(7):
        write_run(tmp_path, f"method-{k}", 0, R=R0)
    figure = matrix.draw(read.find([tmp_path]))
    with Image.open(style.save(figure, tmp_path / "matrix.png")) as image:
        assert image.width <= 2000
    assert len(figure.axes) == 7
    assert len({ax.get_subplotspec().rowspan.start for ax in figure.axes}) == 3


def test_lines_stand_out_from_the_ground_in_light_and_dark():
    tones = {look for look in (*style.PALETTE, *style.OWN.values())}
    for tone in tones:
        assert contrast(tone.light, style.CARD.light) >= 3, tone  # the guideline for graphics (WCAG 1.4.11)
        assert contrast(tone.dark, style.CARD.dark) >= 3, tone


def test_words_can_be_read_in_light_and_dark():
    for tone in (style.INK, style.MUTED):
        assert contrast(tone.light, style.CARD.light) >= 4.5
        assert contrast(tone.dark, style.CARD.dark) >= 4.5


def _dichromat(colour, kind):
    """Colours as a deuteranope or protanope sees them (Vienot, Brettel and Mollon 1999), linear RGB."""
    linear = np.array([c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)])
    rows = {
        "protan": [[0.11238, 0.88762, 0], [0.11238, 0.88762, 0], [0.00401, -0.00401, 1]],
        "deutan": [[0.29275, 0.70725, 0], [0.29275, 0.70725, 0], [-0.02234, 0.02234, 1]],
    }
    return np.array(rows[kind]) @ linear


@pytest.mark.parametrize("kind", ["protan", "deutan"])
def test_the_usual_methods_differ_for_the_colour_blind(kind):
    names = ("drcl", "sgd", "ewc")
    seen = {name: np.cbrt(np.clip(_dichromat(style.OWN[name].light, kind), 0, 1)) for name in names}
    for a in names:
        for b in names:
            if a < b:
                assert np.abs(seen[a] - seen[b]).max() > 0.2, (a, b)


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(st.text(min_size=1, max_size=3), st.floats(0, 100), min_size=1, max_size=12),
    st.floats(0.1, 9),
)
def test_labels_are_spread_without_overlap_and_in_order(wanted, gap):
    places = style.spread(wanted, gap)
    order = sorted(places, key=lambda name: places[name])
    assert all(places[b] - places[a] >= gap - 1e-6 for a, b in itertools.pairwise(order))
    assert [wanted[name] for name in order] == sorted(wanted.values())
    # as a whole they stay where they were wanted
    assert sum(places.values()) == pytest.approx(sum(wanted.values()), abs=1e-6)
