"""The page: what it says, that it is whole in one file, and how it stands in a real browser."""

import json
import math
import os
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from tests.lab.report import browser
from tests.lab.report.fake_runs import write_run, write_runs

from drcl.lab.report import findings
from drcl.lab.report import page as module
from drcl.lab.report.page import page, write_report
from drcl.lab.report.table import rows
from drcl.lab.runs import read

NaN = math.nan


def final(first: float, last: float) -> np.ndarray:
    return np.array([[0.9, NaN], [first, last]])


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The page of three methods and a bound on two seeds, with a run that is not finished."""
    folder = tmp_path_factory.mktemp("report")
    write_runs(folder / "runs", ("sgd", "ewc", "drcl", "joint"))
    write_run(folder / "runs", "drcl", 2, done=3)
    return write_report(read.find([folder / "runs"]), folder / "report.html")


class Outline(HTMLParser):
    """Tags, their attributes and the visible words of a page; complains about unbalanced tags."""

    void = frozenset({"meta", "br", "img", "path", "use", "link", "hr", "input"})

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.void:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if tag not in self.void:
            assert self.open, f"</{tag}> closes nothing"
            assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", "".join(self.words))


# ---- what it says


def test_the_page_is_one_file_that_needs_nothing_else(written):
    outline = Outline(written.read_text(encoding="utf-8"))
    assert outline.open == []
    assert not {tag for tag, _ in outline.tags} & {"script", "link", "iframe", "object", "embed"}
    for tag, attributes in outline.tags:
        for name in ("src", "href"):
            value = attributes.get(name)
            assert value is None or value.startswith(("#", "data:")), (tag, value)
    assert "@import" not in written.read_text(encoding="utf-8")
    # url() inside the style would be a file; the only ones are references inside the figures
    assert not re.search(r"url\((?!#)", written.read_text(encoding="utf-8"))


def test_ids_are_unique_and_links_lead_somewhere(written):
    outline = Outline(written.read_text(encoding="utf-8"))
    ids = [attributes["id"] for _, attributes in outline.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [attributes["href"] for _, attributes in outline.tags if attributes.get("href", "#") != "#"]
    assert links
    assert all(link[1:] in ids for link in links)


def test_the_page_holds_the_numbers_of_the_table(written):
    text = Outline(written.read_text(encoding="utf-8")).text
    runs = read.find([written.parent / "runs"])
    for row in rows(runs):
        assert f"{100 * row.values['average_accuracy'].mean:.1f}" in text
    assert "8 of 9 runs finished" in text
    assert "unfinished, 3 of 8 tasks done" in text


def test_every_run_directory_is_on_the_page_and_no_other_path(written):
    html = written.read_text(encoding="utf-8")
    for run in read.find([written.parent / "runs"]):
        assert f"<code>runs/{run.path.name}</code>" in html
    assert str(written.parent) not in html
    assert "drcl report runs -o report.html" in html


def test_every_picture_has_words(written):
    outline = Outline(written.read_text(encoding="utf-8"))
    pictures = [attributes for tag, attributes in outline.tags if tag == "svg"]
    # accuracy, forgetting; a matrix for sgd, ewc and drcl; drift of drcl; movement; two of cost
    assert len(pictures) == 9
    ids = {attributes.get("id") for _, attributes in outline.tags}
    for attributes in pictures:
        assert attributes["role"] == "img"
        assert set(attributes["aria-labelledby"].split()) <= ids


def test_settings_are_said_once_where_methods_agree(written):
    text = written.read_text(encoding="utf-8")
    assert text.count("<code>epochs = 20</code>") == 1
    assert text.count("<code>strength = 10.0</code>") == 1
    assert "<dt>torch</dt><dd>2.13.0</dd>" in text
    assert "<dt>git commit</dt><dd>0123456789ab</dd>" in text


def test_names_are_text_and_never_markup(tmp_path):
    evil = "<script>alert(1)</script>\"'&"
    write_run(tmp_path, evil, 0, R=final(0.5, 0.9), name="a", benchmark="<img src=x onerror=alert(2)>")
    path = write_run(tmp_path, "sgd", 0, R=final(0.5, 0.9), name="<b>b", benchmark="<img src=x onerror=alert(2)>")
    environment = {"machine": "<script>alert(3)</script>"}
    (path / "environment.json").write_text(json.dumps(environment))
    html = page(read.find([tmp_path]), title="<script>alert(4)</script>", command="<u>c</u>")
    outline = Outline(html)
    assert not {tag for tag, _ in outline.tags} & {"script", "img", "u", "b2"}
    assert evil in outline.text
    assert "<script>alert(4)</script>" in outline.text


def test_several_benchmarks_have_a_section_each(tmp_path):
    for benchmark in ("one", "two"):
        for method in ("sgd", "drcl"):
            write_run(tmp_path, method, 0, benchmark=benchmark, tasks=3)
    outline = Outline(page(read.find([tmp_path])))
    sections = [a["id"] for tag, a in outline.tags if tag == "section"]
    assert sections == ["b0", "b1"]
    assert "Continual learning on 2 benchmarks" in outline.text
    ids = [attributes["id"] for _, attributes in outline.tags if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_no_runs_and_unfinished_runs_make_a_page_that_says_so(tmp_path):
    assert "No runs to compare" in page([])
    write_run(tmp_path / "a", "sgd", 0, done=1)
    text = Outline(page(read.find([tmp_path / "a"]))).text
    assert "No run of a method is finished yet" in text
    assert "unfinished, 1 of 8 tasks done" in text
    broken = write_run(tmp_path / "b", "sgd", 0)
    (broken / "config.toml").write_text("=")
    text = Outline(page(read.find([tmp_path / "b"]))).text
    assert "Runs that cannot be read" in text
    assert "config.toml is damaged" in text


def test_runs_without_cost_or_drift_still_make_a_page(tmp_path):
    path = write_run(tmp_path, "sgd", 0, R=final(0.5, 0.9))
    (path / "cost.json").unlink()
    (path / "drift.csv").unlink()
    outline = Outline(page(read.find([tmp_path])))
    assert "cost.json is missing" in outline.text
    assert sum(tag == "svg" for tag, _ in outline.tags) == 3  # accuracy, forgetting, matrix


# ---- writing


def test_writing_replaces_the_old_page_or_leaves_it(tmp_path, monkeypatch):
    runs = read.find([write_runs(tmp_path / "runs", ("sgd",), tasks=2)])
    target = tmp_path / "new" / "page.html"
    write_report(runs, target, title="first")
    write_report(runs, target, title="second")
    assert "<h1>second</h1>" in target.read_text(encoding="utf-8")
    assert oct(target.stat().st_mode & 0o777) == "0o644"

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_report(runs, target, title="third")
    assert "<h1>second</h1>" in target.read_text(encoding="utf-8")
    assert [file.name for file in target.parent.iterdir()] == ["page.html"]


def test_the_same_runs_make_the_same_page(tmp_path):
    runs = read.find([write_runs(tmp_path / "runs", ("sgd", "drcl"), tasks=2)])
    assert page(runs) == page(runs)


# ---- the finding


def sentence(tmp_path, **accuracies):
    for method, seeds in accuracies.items():
        for seed, value in enumerate(seeds):
            write_run(tmp_path, method, seed, R=final(value, value), seconds=15.0 if method == "drcl" else 10.0)
    return findings.finding(rows(read.find([tmp_path])))


def test_finding_states_the_lead_and_its_price(tmp_path):
    text = sentence(tmp_path, sgd=[0.5, 0.52], ewc=[0.7, 0.72], drcl=[0.8, 0.82])
    # 81.0 - 71.0 = 10.0, 81.0 - 51.0 = 30.0; 15 s against 10 s
    assert text.startswith("After 2 tasks, drcl holds 81.0\N{NO-BREAK SPACE}% average accuracy")
    assert ", 10.0 points above ewc and 30.0 above sgd; it " in text
    assert "takes 1.50 times as long as sgd" in text
    assert "spread" not in text


def test_finding_does_not_claim_what_the_spread_forbids(tmp_path):
    # 78.0 +- 14.1 against 75.0 +- 7.1
    text = sentence(tmp_path, ewc=[0.7, 0.8], drcl=[0.68, 0.88])
    assert "3.0 points above ewc (within the spread over seeds)" in text


def test_finding_sees_no_lead_where_there_is_none(tmp_path):
    text = sentence(tmp_path, sgd=[0.7001, 0.7], ewc=[0.7, 0.7])
    assert text.startswith("After 2 tasks, sgd holds 70.0\N{NO-BREAK SPACE}% average accuracy, level with ewc")


def test_finding_says_when_there_is_one_seed(tmp_path):
    assert "(one seed each)" in sentence(tmp_path, sgd=[0.5], ewc=[0.7])


def test_finding_names_the_bound_apart(tmp_path):
    text = sentence(tmp_path, sgd=[0.5, 0.5], joint=[0.9, 0.9])
    assert text.startswith("After 2 tasks, sgd holds 50.0\N{NO-BREAK SPACE}% average accuracy.")
    assert text.endswith("Training on all data at once (joint) reaches 90.0\N{NO-BREAK SPACE}%.")


def test_a_title_for_every_number_of_benchmarks():
    assert module._title([]) == "No runs to compare"
    assert module._title(["x"]) == "Continual learning on x"
    assert module._title(["x", "y"]) == "Continual learning on 2 benchmarks"


# ---- in a browser

_BROWSER = browser.find()
needs_browser = pytest.mark.skipif(_BROWSER is None, reason="no chromium or chrome on this machine")

_MEASURE = """
(() => {
  const box = e => e.getBoundingClientRect();
  const inside = e => e.closest('.scroll') !== null;
  const wide = [...document.body.querySelectorAll('*')]
    .filter(e => !inside(e) && !e.closest('svg') && box(e).width > 0 && box(e).right > innerWidth + 1)
    .map(e => e.tagName + '.' + e.className);
  const smallest = Math.min(...[...document.querySelectorAll('svg text')].map(t => box(t).height));
  const cut = [...document.querySelectorAll('svg')].flatMap(s => [...s.querySelectorAll('text')]
    .filter(t => box(t).left < box(s).left - 2 || box(t).right > box(s).right + 2).map(t => t.textContent));
  return {
    page: document.documentElement.scrollWidth, window: innerWidth, wide, smallest, cut,
    pictures: [...document.querySelectorAll('figure svg')].map(s => [box(s).width, box(s).height]),
    drawn: [...document.querySelectorAll('figure svg')].map(s => s.querySelectorAll('path, use').length),
    ground: getComputedStyle(document.body).backgroundColor,
    ink: getComputedStyle(document.querySelector('h1')).color,
    text: getComputedStyle(document.body).fontSize,
  };
})()
"""


@pytest.fixture(scope="module")
def chrome():
    with browser.Browser(_BROWSER) as window:
        yield window


@needs_browser
@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_page_in_a_browser(written, chrome, width, dark, tmp_path):
    chrome.errors.clear()
    chrome.requests.clear()
    chrome.open(written, width, dark=dark)
    seen = chrome.evaluate(_MEASURE)
    assert chrome.errors == []
    assert chrome.requests == [written.as_uri()]  # nothing but itself
    assert seen["window"] == width
    assert seen["page"] <= width, "the page scrolls sideways"
    assert seen["wide"] == []
    assert len(seen["pictures"]) == 9
    assert all(w > 200 and h > 120 for w, h in seen["pictures"])
    assert all(shapes > 5 for shapes in seen["drawn"])
    assert seen["smallest"] >= 9, "letters in a figure are too small to read"
    assert seen["cut"] == []
    ground, ink = (sum(map(int, re.findall(r"\d+", seen[key])[:3])) for key in ("ground", "ink"))
    assert (ground < ink) is dark
    assert seen["text"] == "16px"
    assert chrome.screenshot(tmp_path / "page.png").stat().st_size > 20_000


@pytest.fixture(scope="module")
def crowded(tmp_path_factory):
    """A page with more and longer names than it was made for."""
    folder = tmp_path_factory.mktemp("crowded")
    long, benchmark = "a-method-with-a-name-that-goes-on-and-on-without-a-space", "bench" + "mark" * 30
    for k in range(12):
        name = f"{long}-{k}" if k % 2 else f"m{k}"
        write_run(folder / "runs", name, 0, tasks=5, benchmark=benchmark, name=f"{k}" + long * 2)
    return write_report(read.find([folder / "runs"]), folder / "page.html")


@needs_browser
@pytest.mark.parametrize("width", [1280, 400])
def test_long_names_and_many_methods_in_a_browser(crowded, chrome, width):
    chrome.errors.clear()
    chrome.open(crowded, width)
    seen = chrome.evaluate(_MEASURE)
    assert chrome.errors == []
    assert seen["page"] <= width
    assert seen["wide"] == []
    assert seen["cut"] == []


@needs_browser
def test_the_browser_would_notice(chrome, tmp_path):
    """The checks above are worth something only if they can fail."""
    bad = tmp_path / "bad.html"
    bad.write_text(
        "<h1 style='width: 3000px'>x</h1><script>missing()</script><img src='missing.png'>"
        "<figure><svg width='0' height='0'></svg></figure>"
    )
    chrome.errors.clear()
    chrome.requests.clear()
    chrome.open(bad, 400)
    seen = chrome.evaluate(_MEASURE)
    assert any("missing is not defined" in error for error in chrome.errors)
    assert seen["page"] > 400 or seen["window"] > 400
    assert seen["pictures"] == [[0, 0]]
    assert len(chrome.requests) == 2
    chrome.errors.clear()
