"""Figures: what they draw is what the runs hold; how they look follows one set of rules."""

import itertools
import math
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.colors import to_rgb
from PIL import Image
from tests.lab.report.fake_runs import write_run, write_runs

from drcl.lab.report import figures
from drcl.lab.report.figures import (
    accuracy_curves,
    cost,
    drift,
    forgetting,
    heat,
    matrix,
    movement,
    style,
    time_parts,
)
from drcl.lab.report.groups import group
from drcl.lab.report.svg import inline_svg, variables
from drcl.lab.runs import read

NaN = math.nan
R0 = np.array([[0.9, NaN, NaN], [0.7, 0.8, NaN], [0.5, 0.6, 1.0]])
R1 = np.array([[0.7, NaN, NaN], [0.7, 0.8, NaN], [0.5, 0.6, 1.0]])


@pytest.fixture
def runs(tmp_path):
    return read.find([write_runs(tmp_path, ("sgd", "ewc", "drcl", "joint"))])


@pytest.fixture
def small(tmp_path):
    write_run(tmp_path, "sgd", 0, R=R0, seconds=10.0)
    write_run(tmp_path, "sgd", 1, R=R1, seconds=10.0)
    return read.find([tmp_path])


def lines(figure):
    return [line for line in figure.axes[0].get_lines() if len(line.get_xdata()) > 2]


def texts(figure):
    return [text.get_text() for ax in figure.axes for text in ax.texts]


def test_accuracy_curve_is_the_mean_over_seeds(small):
    (line,) = lines(accuracy_curves.draw(small))
    # after task 1: (90 + 70) / 2; after task 2: (70 + 80) / 2; after task 3: (50 + 60 + 100) / 3
    np.testing.assert_allclose(line.get_ydata(), [80, 75, 70])


def test_band_is_one_standard_deviation(small):
    band = accuracy_curves.draw(small).axes[0].collections[0].get_paths()[0].vertices
    at_first = band[np.isclose(band[:, 0], 0), 1]
    spread = 20 / math.sqrt(2)  # of 90 and 70
    assert at_first.min() == pytest.approx(80 - spread)
    assert at_first.max() == pytest.approx(80 + spread)


def test_forgetting_curve(small):
    (line,) = lines(forgetting.draw(small))
    # after task 2: 90 - 70 = 20 and 70 - 70 = 0, mean 10
    # after task 3: ((90 - 50) + (80 - 60)) / 2 = 30 and ((70 - 50) + 20) / 2 = 20, mean 25
    np.testing.assert_allclose(line.get_ydata()[1:], [10, 25])
    assert math.isnan(line.get_ydata()[0])


def test_matrix_shows_every_measured_cell(small):
    figure = matrix.draw(small)
    assert texts(figure) == ["80", "70", "80", "50", "60", "100"]
    assert len(figure.axes[0].patches) == 6


def test_drift_shows_layers_and_all_weights_from_the_second_task(tmp_path):
    path = write_run(tmp_path, "drcl", 0, R=R0)
    rows = ["0,a,100,0.0,1,1,1", "0,b,300,0.0,1,1,1", "1,a,100,0.2,1,1,1", "1,b,300,1.0,0,0,0"]
    head = "task,layer,weights,unmoved,mean_change,largest_change,relative_change"
    (path / "drift.csv").write_text("\n".join([head, *rows]) + "\n")
    runs = read.find([tmp_path])
    names, values = drift.shares(group(runs)[0])
    assert names == ["a", "b", "all weights"]
    np.testing.assert_allclose(values, [[0.2], [1.0], [0.8]])  # (20 + 300) / 400
    assert texts(drift.draw(runs)) == ["20", "100", "80"]
    # relative change, weighted by size: (1 * 100 + 0 * 300) / 400
    assert movement.relative_change(runs[0])[1] == pytest.approx(0.25)


def test_cost_points(tmp_path):
    write_run(tmp_path, "sgd", 0, R=R0, seconds=10.0)
    write_run(tmp_path, "drcl", 0, R=R0, seconds=15.0)
    figure = cost.draw(read.find([tmp_path]))
    points = sorted((line.get_xdata()[0], line.get_ydata()[0]) for line in figure.axes[0].get_lines())
    np.testing.assert_allclose(points, [(1.0, 70.0), (1.5, 70.0)])
    assert sorted(texts(figure)) == ["drcl", "sgd"]


def test_cost_in_seconds_where_there_is_no_sgd(tmp_path):
    write_run(tmp_path, "ewc", 0, R=R0, seconds=12.0)
    runs = read.find([tmp_path])
    assert cost.draw(runs).axes[0].get_xlabel() == "time to learn, seconds"
    assert "seconds: ewc at 12.00, 70.0 percent" in cost.describe(runs)


def test_bars_add_up_to_the_time(tmp_path):
    write_run(tmp_path, "sgd", 0, R=R0, seconds=20.0)
    runs = read.find([tmp_path])
    widths = [bar.get_width() for bar in time_parts.draw(runs).axes[0].patches]
    assert widths == pytest.approx([19.0, 1.0, 1.3])  # 95 % and 5 % of 20 s, and the evaluation
    assert time_parts.describe(runs) == "Bar chart of seconds: sgd training 19.0, consolidation 1.0, evaluation 1.3."


def test_words_for_each_figure(runs):
    for module in figures.FIGURES.values():
        words = module.describe(runs)
        assert "drcl" in words
        assert "nan" not in words


def test_every_figure_saves_as_svg_and_png(runs, tmp_path):
    files = figures.save_all(runs, tmp_path / "figures")
    assert len(files) == 2 * len(figures.FIGURES)
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


def test_nothing_to_draw_says_so():
    for module in figures.FIGURES.values():
        assert any("no " in text for text in texts(module.draw([])))
        assert isinstance(module.describe([]), str)


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


def _luminance(colour):
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))


def _contrast(a, b):
    light, dark = sorted((_luminance(a), _luminance(b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_lines_stand_out_from_the_ground_in_light_and_dark():
    tones = {look for look in (*style._PALETTE, *style._OWN.values())}
    for tone in tones:
        assert _contrast(tone.light, style.CARD.light) >= 3, tone  # the guideline for graphics (WCAG 1.4.11)
        assert _contrast(tone.dark, style.CARD.dark) >= 3, tone


def test_words_can_be_read_in_light_and_dark():
    for tone in (style.INK, style.MUTED):
        assert _contrast(tone.light, style.CARD.light) >= 4.5
        assert _contrast(tone.dark, style.CARD.dark) >= 4.5


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_numbers_on_a_heat_map_can_be_read(theme):
    for k, tone in enumerate(style.HEAT):
        ink = heat.ink(k / (style.LEVELS - 1))
        assert _contrast(getattr(tone, theme), getattr(ink, theme)) >= 4, (k, theme)


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
    seen = {name: np.cbrt(np.clip(_dichromat(style._OWN[name].light, kind), 0, 1)) for name in names}
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


def test_inline_svg_names_its_colours_and_keeps_its_ids_apart(small):
    svg = inline_svg(accuracy_curves.draw(small), "one", "A <title>", 'with "words" & more')
    root = ElementTree.fromstring(svg)
    assert root.find("title").text == "A <title>"
    assert root.find("desc").text == 'with "words" & more'
    assert root.attrib["role"] == "img"
    assert "var(--amber)" in svg
    assert style._OWN["sgd"].light not in svg
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


def test_a_long_stream_is_a_picture_not_ten_thousand_shapes(tmp_path):
    T = 60
    R = np.where(np.tri(T, dtype=bool), 0.5, NaN)
    write_run(tmp_path, "sgd", 0, R=R)
    figure = matrix.draw(read.find([tmp_path]))
    assert len(figure.axes[0].images) == 1
    assert len(inline_svg(figure, "n", "t", "d")) < 200_000
    assert texts(figure) == []
