"""What a figure needs: names and captions for all ten, and a sentence where runs are too few."""

import pytest
from tests.lab.report.figures.paper.recorded import bare, recorded

from drcl.lab.report import figures
from drcl.lab.report.figures import paper
from drcl.lab.report.figures.paper import needs
from drcl.lab.report.svg import inline_svg

NAMES = ["fig1", "plas-stab", "heat", "forget", "l1-loss", "dense", "matrix", "perm", "cost", "abla-1"]


def test_the_ten_figures_have_names_captions_and_needs():
    assert list(paper.FIGURES) == NAMES
    for name, figure in paper.FIGURES.items():
        assert figure.name == name
        assert figure.caption.endswith(".")
        assert "run" in figure.needs
        assert not figure.needs.endswith(".")


@pytest.mark.parametrize("name", NAMES)
def test_no_run_at_all_is_refused_with_what_is_needed(name):
    with pytest.raises(paper.NotEnough) as caught:
        paper.draw(name, [])
    sentence = str(caught.value)
    assert sentence.startswith(f"{name} needs {paper.FIGURES[name].needs}; there is no finished run. ")
    assert sentence.endswith(f"drcl paper run {name} makes what is missing")


def test_the_refusal_names_what_is_there(tmp_path):
    runs = bare(tmp_path)
    with pytest.raises(paper.NotEnough, match="there are sgd, drcl, of which none will do"):
        paper.draw("dense", runs)


def test_an_unknown_figure_is_refused():
    with pytest.raises(ValueError, match="'heats' is not a figure of the paper: did you mean 'heat'"):
        paper.draw("heats", [])


def test_groups_may_be_asked_to_be_several(tmp_path):
    runs = recorded(tmp_path, ("sgd", "drcl"))
    assert [g.label for g in needs.groups_of(runs, "fig1", "two", least=2)] == ["sgd", "drcl"]
    with pytest.raises(needs.NotEnough, match="x needs ten tasks"):
        needs.groups_of(runs, "x", "ten tasks", tasks=10)


def test_the_command_figures_saves_those_the_runs_allow(tmp_path):
    runs = recorded(tmp_path / "runs")
    files = figures.save_all(runs, tmp_path / "figures", ["svg"])
    names = {file.stem for file in files if file.parent.name == "paper"}
    assert names == {"fig1", "plas-stab", "heat", "l1-loss", "dense", "matrix", "perm"}
    assert all(file.stat().st_size > 1000 for file in files)


@pytest.mark.parametrize("name", ["fig1", "plas-stab", "heat", "l1-loss", "dense", "matrix", "perm"])
def test_each_can_stand_on_a_page_and_says_itself_in_words(name, tmp_path):
    runs = recorded(tmp_path)
    told = paper.FIGURES[name].describe(runs)
    assert "drcl" in told
    assert "nan" not in told
    svg = inline_svg(paper.draw(name, runs), "x", paper.FIGURES[name].title, told)
    assert svg.startswith("<svg")
    assert "mathdefault" not in svg
