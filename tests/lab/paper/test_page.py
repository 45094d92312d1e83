"""The page about the paper: whole, self-contained, readable in the dark and on a phone."""

import re

import pytest
from tests.lab.paper.records import ALEXNET, PRINTED, record
from tests.lab.report import browser

from drcl.lab.paper.contents import paper
from drcl.lab.paper.page import write_page
from drcl.lab.paper.verdicts import verdicts

PAPER = paper()


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("paper")
    runs = [
        record(folder / "runs", "cifar100-10", "ewc", 0, 0.50, of_benchmark=ALEXNET),
        record(folder / "runs", "cifar100-10", "drcl", 0, 0.55, of_benchmark=ALEXNET, of_method=PRINTED),
    ]
    found = verdicts(PAPER, runs, root=folder)
    return write_page(PAPER, runs, found, "small", folder / "paper.html", "drcl paper page")


@pytest.fixture(scope="module")
def text(written):
    return written.read_text(encoding="utf-8")


def test_every_claim_table_and_figure_is_on_it(text):
    for claim in PAPER.claims:
        assert f'id="claim-{claim}"' in text
    for table in PAPER.tables.values():
        assert table.title in text
    for figure in PAPER.figures:
        assert f'id="figure-{figure}"' in text


def test_verdicts_and_commands(text):
    assert re.search(r'<span class="verdict open">not run</span>DRCL is well ahead of EWC', text)
    assert "drcl paper run headline --budget small" in text
    assert '<span class="verdict holds">holds</span>' in text


def test_nothing_comes_from_elsewhere(text):
    assert not re.search(r'(src|href)="(?!#)', text)
    assert "<script" not in text


def test_ids_are_unique(text):
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))


def test_a_smoke_page_says_what_it_is(tmp_path):
    path = write_page(PAPER, [], verdicts(PAPER, [], root=tmp_path), "smoke", tmp_path / "p.html", "x")
    assert "Every number of ours on this page comes from small digits" in path.read_text(encoding="utf-8")


@pytest.mark.skipif(browser.find() is None, reason="there is no browser here")
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (400, False)])
def test_in_a_browser_nothing_sticks_out(written, width, dark):
    with browser.Browser(browser.find()) as shown:
        shown.open(written, width=width, dark=dark)
        assert shown.evaluate("document.documentElement.scrollWidth") <= width
        assert not shown.errors
