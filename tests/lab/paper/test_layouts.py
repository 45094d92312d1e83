"""The four ways to write a table."""

import io
from xml.etree import ElementTree

import pytest
from rich.console import Console
from tests.lab.paper.records import ALEXNET, PRINTED, record

from drcl.lab.paper.contents import paper
from drcl.lab.paper.layouts import render, rich_table
from drcl.lab.paper.tables import fill

PAPER = paper()


@pytest.fixture
def runs(tmp_path):
    return [
        record(tmp_path, "cifar100-10", "ewc", 0, 0.50, -0.031, of_benchmark=ALEXNET),
        record(tmp_path, "cifar100-10", "ewc", 1, 0.54, -0.031, of_benchmark=ALEXNET),
        record(tmp_path, "cifar100-10", "drcl", 0, 0.55, 0.012, of_benchmark=ALEXNET, of_method=PRINTED),
    ]


def test_text(runs):
    lines = render(fill(PAPER, "table1", runs)).splitlines()
    ewc = next(k for k, line in enumerate(lines) if line.strip().startswith("EWC"))
    assert "52.0 ± 2.8" in lines[ewc]
    assert "63.5 ± 0.8" in lines[ewc + 1]
    assert max(map(len, lines)) <= 132


def test_markdown(runs):
    text = render(fill(PAPER, "table1", runs), "markdown")
    assert "| EWC | 52.0 ± 2.8 (63.5 ± 0.8) |" in text
    assert "| Ours | **55.0** (71.9 ± 0.2) |" in text
    assert "| HAT | – (63.9 ± 0.5) |" in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in rows} == {10}


def test_latex(runs):
    text = render(fill(PAPER, "table1", runs), "latex")
    assert r"\begin{tabular}{l|ccccc|ccc}" in text
    assert r"\multicolumn{5}{c}{disjoint tasks}" in text
    assert r"Ours & \textbf{\boldmath 55.0} {\scriptsize(71.9 $\pm$ 0.2)} &" in text
    body = [line for line in text.splitlines() if line.endswith(r"\\") and "multicolumn" not in line]
    assert {line.count("&") for line in body} == {8}


def test_html_is_well_formed(runs):
    table = ElementTree.fromstring(render(fill(PAPER, "table1", runs), "html").replace(" class=reference", ""))
    ours = next(row for row in table.iter("tr") if row.find("th").text == "Ours")
    first = ours.find("td")
    assert (first.find("b").text, first.find("small").text, first.get("class")) == ("55.0", "(71.9 ± 0.2)", "best")


def test_signs_in_the_second_table(runs):
    text = render(fill(PAPER, "table2", runs), "markdown")
    assert "| EWC | −3.1 ± 0.0 (−6.8) |" in text
    assert "| Ours | **+1.2** (−2.8) |" in text


def test_a_narrow_terminal_gets_a_table_for_each_group(runs):
    out = io.StringIO()
    Console(file=out, width=80, color_system=None).print(rich_table(fill(PAPER, "table1", runs), 80))
    text = out.getvalue()
    assert text.count("Table 1: accuracy, %") == 2
    assert "…" not in text
    assert "52.0±2.8" in text
    assert "63.5±0.8" in text


def test_an_unknown_format_is_refused(runs):
    with pytest.raises(ValueError, match="format='pdf'; choose one of text, markdown, latex, html"):
        render(fill(PAPER, "table1", runs), "pdf")
