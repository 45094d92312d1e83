"""The ledger as text, and docs/paper.md made of it."""

import io
from pathlib import Path

import pytest
from rich.console import Console
from tests.lab.paper.test_rules import headline

from drcl.lab.paper.contents import paper
from drcl.lab.paper.ledger import END, START, markdown, placed, rich_ledger, summary
from drcl.lab.paper.studies import studies
from drcl.lab.paper.verdicts import verdicts
from drcl.lab.runs.read import find

PAPER = paper()
DOCS = Path(__file__).parents[3] / "docs"
RESULTS = DOCS.parent / "results"


@pytest.fixture
def found(tmp_path):
    runs = headline(tmp_path / "runs", (0.60, 0.61, 0.62), (0.55, 0.55, 0.55))
    return verdicts(PAPER, runs, root=tmp_path)


def test_a_row_per_claim_with_its_evidence(found, tmp_path):
    rows = [line for line in markdown(PAPER, found, tmp_path).splitlines() if line.startswith("| ")][1:]
    assert len(rows) == len(PAPER.claims)
    first = rows[0]
    assert first.startswith("| **holds** | DRCL is well ahead of EWC<br>*Table 1:")
    assert "* | Ours 61.0 ± 1.0 against EWC 55.0 ± 0.0" in first
    assert "<br>*3 seeds; alexnet at 0.5 width, 12 epochs; " in first
    assert first.endswith("*<br>[runs](runs), `drcl paper run headline --budget small` |")
    assert {line.replace(r"\|", "").count("|") for line in rows} == {4}


def test_what_was_not_run_has_its_command_alone(found, tmp_path):
    (row,) = (line for line in markdown(PAPER, found, tmp_path).splitlines() if "DRCL outperforms SGP<br>" in line)
    assert row.startswith("| **not run** |")
    assert row.endswith(
        "* | *half width and 12 epochs; the best of lambda 10 and a tuned one at two rates*"
        "<br>`drcl paper run headline --budget small` |"
    )


def test_in_a_terminal(found):
    out = io.StringIO()
    Console(file=out, width=100, color_system=None).print(rich_ledger(found))
    text = out.getvalue()
    assert "holds" in text
    assert "drcl paper run headline --budget small" in text
    assert summary(found) in text


def test_the_summary_counts(found):
    assert summary(found).startswith(f"{len(PAPER.claims)} claims: ")
    numbers = [int(part.split()[0]) for part in summary(found).partition(": ")[2].split(", ")]
    assert sum(numbers) == len(PAPER.claims)


def test_between_the_marks():
    page = f"before\n{START}\nold\n{END}\nafter\n"
    assert placed(page, "new\n") == f"before\n{START}\nnew\n{END}\nafter\n"
    with pytest.raises(ValueError, match="the page has no place for it"):
        placed("nothing", "new")


def test_the_page_in_the_docs_is_up_to_date(tmp_path):
    """`drcl paper verdicts results --into docs/paper.md` makes it; data folders are not looked at."""
    verdict = verdicts(PAPER, find([RESULTS]), studies([RESULTS]), tmp_path)
    page = (DOCS / "paper.md").read_text(encoding="utf-8")
    assert placed(page, markdown(PAPER, verdict, DOCS)) == page, "run: make tables"
