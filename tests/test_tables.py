"""Every table of results in the docs and the README is what the records in results/ give."""

import pytest
from benchmarks import tables
from benchmarks.speed import ratios

PAGES = [page for page in tables.pages() if "<!-- " in page.read_text(encoding="utf-8")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(tables.ROOT)))
def test_no_table_is_stale(page):
    assert tables.fresh(page) == page.read_text(encoding="utf-8"), "run: make tables"


def test_every_table_is_shown_somewhere():
    assert tables.unused() == []


def test_what_stands_between_the_marks_is_replaced():
    text = "a\n<!-- table: x -->\nold\n<!-- end -->\nb\n<!-- table: y 2 -->\n<!-- end -->\n"
    made = tables.filled(text, {"x": lambda: "new", "y 2": lambda: "two\nlines"})
    assert made == "a\n<!-- table: x -->\nnew\n<!-- end -->\nb\n<!-- table: y 2 -->\ntwo\nlines\n<!-- end -->\n"
    assert tables.filled(made, {"x": lambda: "new", "y 2": lambda: "two\nlines"}) == made


def test_a_mark_without_a_table_is_refused():
    with pytest.raises(ValueError, match="there is no table 'z'; known are x"):
        tables.filled("<!-- table: z -->\n<!-- end -->", {"x": lambda: ""})


def test_ratios_are_kept_by_case_and_measure(tmp_path):
    path = tmp_path / "speed" / "ratios.csv"
    ratios.keep("directions", "mlp", {"a": 1.23456, "b": 2.0}, path)
    ratios.keep("directions", "alexnet", {"a": 3.0}, path)
    ratios.keep("directions", "mlp", {"b": 2.5}, path)
    found = ratios.read(path)
    assert found[("directions", "a", "mlp")] == 1.235
    assert found[("directions", "b", "mlp")] == 2.5
    assert found[("directions", "a", "alexnet")] == 3.0
    assert len(found) == 3


@pytest.mark.parametrize(("value", "text"), [(1.304, "1.30"), (11.06, "11.1"), (18.2, "18"), (None, "")])
def test_ratios_have_few_digits(value, text):
    assert ratios.written(value) == text


def test_every_row_of_a_speed_table_was_measured():
    there = ratios.read()
    for name, layout in ratios.LAYOUTS.items():
        for case in layout.cases:
            assert all((name, case, measure) in there for measure in layout.measures), (name, case)
