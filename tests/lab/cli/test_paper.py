"""``drcl paper``: what each command prints, writes and refuses."""

import pytest
from tests.lab.cli.stage import call
from tests.lab.paper.records import ALEXNET, record
from tests.lab.paper.test_rules import headline


@pytest.fixture(autouse=True)
def somewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DRCL_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


QUICK = [
    "--rows",
    "sgd,ewc",
    "--benchmarks",
    "cifar100-10",
    "-o",
    "epochs=1",
    "-o",
    "tasks=2",
    "-o",
    "limit_per_class=12",
]


def test_smoke_runs_on_digits_says_so_and_is_not_run_twice():
    first = call("paper", "run", "table1", "--budget", "smoke", *QUICK)
    assert first.exit_code == 0, first.output
    assert "nothing about the paper" in first.output
    assert "digits-split in place of cifar100-10" in first.output
    assert "Table 1: accuracy, %" in first.output
    again = call("paper", "run", "table1", "--budget", "smoke", *QUICK)
    assert again.output.count("there already") == 2
    shown = call("paper", "show", "table1", "--budget", "smoke", "-f", "markdown")
    assert "digits-split stands in for CIFAR-100 [10]" in shown.output


def test_data_that_are_not_here_are_skipped_with_a_word():
    outcome = call("paper", "run", "plas-stab", "--budget", "small")
    assert outcome.exit_code == 1
    assert "skipped    cifar100-10: cifar100 is not here (drcl data fetch cifar100)" in outcome.output
    assert "none of the data it needs are here" in outcome.output


def test_a_dry_run_runs_nothing(somewhere):
    outcome = call("paper", "run", "all", "--budget", "smoke", "--dry-run")
    assert outcome.exit_code == 0
    assert "digits-split-sgd-seed0" in outcome.output
    assert not (somewhere / "runs").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "table3"], "'table3' is not a table, figure or ablation of the paper"),
        (["run", "table1", "-b", "smoke", "--rows", "ewk"], "row 'ewk' is not part of this"),
        (["run", "table1", "-b", "smoke", "-o", "speed=1"], "'speed'"),
        (["show", "fig1"], "'fig1' is not a table of the paper: choose table1 or table2"),
        (["figure", "table1"], "'table1' is not a figure of the paper"),
        (["show", "table1", "--runs", "nowhere"], "nowhere does not exist"),
        (["verdicts", "nowhere"], "nowhere does not exist"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(words, said):
    outcome = call("paper", *words)
    assert outcome.exit_code == 2
    assert said in outcome.output


@pytest.mark.parametrize("format", ["text", "markdown", "latex", "html"])
def test_show_without_any_run_prints_the_paper(format):
    outcome = call("paper", "show", "table1", "-f", format)
    assert outcome.exit_code == 0
    assert "71.9" in outcome.output


def test_show_reads_the_runs_it_is_given(somewhere):
    record(somewhere / "mine", "cifar100-10", "ewc", 0, 0.4567, of_benchmark=ALEXNET)
    outcome = call("paper", "show", "table1", "--runs", "mine")
    assert "45.7" in outcome.output


def test_a_figure_without_runs_says_what_makes_them():
    outcome = call("paper", "figure", "heat")
    assert outcome.exit_code == 1
    assert "heat needs" in outcome.output
    assert "drcl paper run heat" in outcome.output


def test_verdicts_from_runs(somewhere):
    headline(somewhere / "mine", (0.6, 0.61, 0.62), (0.5, 0.5, 0.5))
    text = call("paper", "verdicts", "mine").output
    assert "DRCL is well ahead of EWC" in text
    assert "Ours 61.0 ± 1.0 against EWC 50.0 ± 0.0" in " ".join(text.split())
    assert call("paper", "verdicts", "mine", "-f", "markdown").output.count("\n| ") >= 30


def test_verdicts_into_a_page(somewhere):
    page = somewhere / "page.md"
    page.write_text("# Title\n<!-- verdicts -->\n<!-- end -->\nrest\n", encoding="utf-8")
    outcome = call("paper", "verdicts", "--into", page)
    assert outcome.exit_code == 0, outcome.output
    text = page.read_text(encoding="utf-8")
    assert text.startswith("# Title\n<!-- verdicts -->\n*Task Switching")
    assert text.endswith("<!-- end -->\nrest\n")
    page.write_text("no marks", encoding="utf-8")
    refused = call("paper", "verdicts", "--into", page)
    assert refused.exit_code == 1
    assert page.read_text(encoding="utf-8") == "no marks"


def test_the_page(somewhere):
    outcome = call("paper", "page", "-o", somewhere / "out" / "paper.html")
    assert outcome.exit_code == 0, outcome.output
    assert "claims" in outcome.output
    assert "<!doctype html>" in (somewhere / "out" / "paper.html").read_text(encoding="utf-8")
