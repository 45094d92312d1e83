"""Figures: what they draw is what the runs hold; how they look follows one set of rules."""

from tests.lab.report.figures.looking import texts

from drcl.lab.report import figures


def test_words_for_each_figure(runs):
    for module in figures.FIGURES.values():
        words = module.describe(runs)
        assert "drcl" in words
        assert "nan" not in words


def test_nothing_to_draw_says_so():
    for module in figures.FIGURES.values():
        assert any("no " in text for text in texts(module.draw([])))
        assert isinstance(module.describe([]), str)
