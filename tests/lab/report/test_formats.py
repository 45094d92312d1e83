"""Tables in a terminal, in Markdown, as CSV and as LaTeX."""

import csv
import io

import pytest
from rich.console import Console
from tests.lab.report.fake_runs import final, write_run, write_runs

from drcl.lab.report import table
from drcl.lab.report.formats import render, summary_table
from drcl.lab.report.table import rows
from drcl.lab.runs import read


def test_csv_holds_fractions_at_full_precision(two_methods):
    found = rows(read.find([two_methods]))
    lines = list(csv.DictReader(io.StringIO(render(found, "csv"))))
    assert [line["method"] for line in lines] == ["sgd", "drcl"]
    assert float(lines[1]["average_accuracy"]) == pytest.approx(0.875, abs=1e-15)
    assert float(lines[1]["relative_time"]) == pytest.approx(1.25)
    assert lines[0]["seeds"] == "0 1"
    assert lines[0]["average_accuracy_n"] == "2"
    assert lines[0]["left_out"] == "0"


def test_markdown_has_bold_best_and_escapes(two_methods):
    write_run(two_methods, "a|b*c", 0, R=final(0.1, 0.2))
    text = render(rows(read.find([two_methods])), "markdown")
    assert "| drcl | 2 | **87.5 ± 3.5** |" in text
    assert "a\\|b\\*c" in text
    widths = {line.replace("\\|", "").count("|") for line in text.splitlines() if line.startswith("|")}
    assert widths == {len(table.COLUMNS) + 3}


def test_latex_is_booktabs_and_escapes(two_methods):
    write_run(two_methods, "50%_$x{y}\\&#~^", 0, R=final(0.1, 0.2))
    text = render(rows(read.find([two_methods])), "latex")
    assert r"50\%\_\$x\{y\}\textbackslash{}\&\#\textasciitilde{}\textasciicircum{}" in text
    assert text.index(r"\toprule") < text.index(r"\midrule") < text.index(r"\bottomrule")
    assert r"\textbf{\boldmath 87.5 $\pm$ 3.5}" in text
    body = [line for line in text.splitlines() if line.endswith(r"\\") and "multicolumn" not in line]
    assert {line.replace(r"\&", "").count("&") for line in body} == {len(table.COLUMNS) + 1}


def test_several_benchmarks_are_kept_apart(tmp_path):
    write_run(tmp_path, "sgd", 0, benchmark="one", R=final(0.5, 0.9))
    write_run(tmp_path, "sgd", 0, benchmark="two", R=final(0.6, 0.9))
    found = rows(read.find([tmp_path]))
    assert [row.benchmark for row in found] == ["one", "two"]
    for format in ("text", "markdown", "csv", "latex"):
        text = render(found, format)
        assert "one" in text
        assert "two" in text


def test_an_unknown_format_is_refused():
    with pytest.raises(ValueError, match="format='html'; choose one of text, markdown, csv, latex"):
        render([], "html")


def test_no_runs_make_an_empty_table():
    for format in ("text", "markdown", "csv", "latex"):
        assert isinstance(render([], format), str)


def test_summary_table_fits_a_terminal(tmp_path):
    runs = read.find([write_runs(tmp_path, ("sgd", "ewc", "drcl", "joint"))])
    console = Console(width=80, file=io.StringIO(), record=True)
    console.print(summary_table(runs))
    text = console.export_text()
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    names = [line.split()[1] for line in lines if "±" in line]
    assert names == ["sgd", "ewc", "drcl", "joint"]
    assert lines[0].strip() == "digits-permuted, 8 tasks, 2 seeds"
    for heading in ("method", "average", "backward", "unmoved", "× SGD"):
        assert heading in text
    assert "…" not in text  # no number is cut off
    assert "1.00" in text


def test_summary_table_drops_nothing_without_a_word(tmp_path):
    write_runs(tmp_path, ("sgd",), tasks=2)
    broken = write_run(tmp_path, "ewc", 0, name="broken")
    (broken / "config.toml").write_text("=")
    console = Console(width=120, file=io.StringIO(), record=True)
    console.print(summary_table(read.find([tmp_path])))
    assert "broken: config.toml is damaged" in " ".join(console.export_text().split())


def test_bars_are_as_long_as_the_accuracy(tmp_path):
    write_run(tmp_path, "sgd", 0, R=final(0.3, 0.5))  # 40 %: 4 of 10
    write_run(tmp_path, "ewc", 0, R=final(0.96, 0.94))  # 95 %: 9 and a half
    console = Console(width=100, file=io.StringIO(), record=True)
    console.print(summary_table(read.find([tmp_path])))
    lines = [line for line in console.export_text().splitlines() if "━" in line]
    assert [(line.count("━"), line.count("╸")) for line in lines] == [(4, 0), (9, 1)]


def test_markup_in_a_name_is_only_text(tmp_path):
    write_run(tmp_path, "[bold red]x[/]", 0, R=final(0.5, 0.9))
    runs = read.find([tmp_path])
    console = Console(width=120, file=io.StringIO(), record=True)
    console.print(summary_table(runs))
    assert "[bold red]x[/]" in console.export_text()
    assert "[bold red]x[/]" in render(rows(runs), "text")


@pytest.mark.parametrize("format", ["text", "markdown", "csv", "latex"])
def test_no_escape_sequence_of_a_name_reaches_a_terminal(two_methods, format):
    write_run(
        two_methods, "a\x1b]0;owned\x07b\r\x9b2J", 0, name="c\x1b[2Jd", R=final(0.1, 0.2), options={"x": "\x1b[1m"}
    )
    write_run(two_methods, "sgd", 9, name="e\x1b[2Jf", done=1)
    text = render(rows(read.find([two_methods])), format)
    assert not set(text) & set("\x1b\x07\r\x9b\x00")
    assert "\\x1b" in text or "textbackslash" in text
