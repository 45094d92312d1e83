"""The page: what it says, that it is whole in one file, and how it stands in a real browser."""

import json
import os
import re

import pytest
from tests.lab.report import browser
from tests.lab.report.fake_runs import final, write_run, write_runs
from tests.lab.report.outline import Outline

from drcl.lab.report import page as module
from drcl.lab.report.page import page, write_report
from drcl.lab.report.table import rows
from drcl.lab.runs import read


def test_the_page_is_one_file_that_needs_nothing_else(written):
    outline = Outline(written.read_text(encoding="utf-8"))
    assert outline.open == []
    assert not {tag for tag, _ in outline.tags} & {"link", "iframe", "object", "embed"}
    assert [attributes for tag, attributes in outline.tags if tag == "script"] == [{}]  # one, and it is on the page
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


def test_names_are_text_and_never_markup(tmp_path):
    evil = "<script>alert(1)</script>\"'&"
    write_run(tmp_path, evil, 0, R=final(0.5, 0.9), name="a", benchmark="<img src=x onerror=alert(2)>")
    path = write_run(tmp_path, "sgd", 0, R=final(0.5, 0.9), name="<b>b", benchmark="<img src=x onerror=alert(2)>")
    environment = {"machine": "<script>alert(3)</script>"}
    (path / "environment.json").write_text(json.dumps(environment))
    html = page(read.find([tmp_path]), title="<script>alert(4)</script>", command="<u>c</u>")
    outline = Outline(html)
    assert not {tag for tag, _ in outline.tags} & {"img", "u", "b2"}
    assert sum(tag == "script" for tag, _ in outline.tags) == 1
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
    assert len(outline.pictures) == 3  # accuracy, forgetting, matrix


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


def test_a_title_for_every_number_of_benchmarks():
    assert module._title([]) == "No runs to compare"
    assert module._title(["x"]) == "Continual learning on x"
    assert module._title(["x", "y"]) == "Continual learning on 2 benchmarks"


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


@pytest.mark.parametrize("broken", ["failed", "unfinished", "damaged"])
def test_a_grid_value_that_failed_on_every_seed_is_listed_as_broken(tmp_path, broken):
    """The rest of a grid keeps its names, even if only one of two values is left."""
    for seed in range(2):
        write_run(tmp_path, "ewc", seed, name=f"good{seed}", options={"lam": 1.0}, tasks=3)
        bad = write_run(tmp_path, "ewc", seed, name=f"bad{seed}", options={"lam": 10.0}, tasks=3)
        if broken == "failed":
            (bad / "result.json").write_text(json.dumps({"finished": False, "error": "the loss became NaN"}))
        elif broken == "unfinished":
            (bad / "result.json").unlink()
        else:
            (bad / "digests.json").write_text("{}")
    write_run(tmp_path, "sgd", 0, tasks=3)
    html = page(read.find([tmp_path]))
    text = Outline(html).text
    assert "ewc (lam=1.0)" in text
    assert {"failed": "the loss became NaN", "unfinished": "unfinished", "damaged": "broken: digests.json"}[
        broken
    ] in text
    assert "bad1" in text
    assert html.count("<svg") > 5


PLACES = ["method", "benchmark", "option", "layer", "folder", "environment", "error"]
EVIL = ["\x00", "\x1b[31m", "\x08", "\x85", "\x9b2J", "\ud800", "\uffff", "\u202e"]
NO_FOLDER = ("\x00", "\ud800")  # no folder has such a name


@pytest.mark.parametrize(
    ("where", "evil"),
    [(where, evil) for where in PLACES for evil in EVIL if where != "folder" or evil not in NO_FOLDER],
)
def test_control_characters_are_shown_and_break_nothing(tmp_path, where, evil):
    name = f"a{evil}b"
    quoted = json.dumps(name)  # TOML and JSON agree on this
    given = {"method": "ewc", "benchmark": "digits"} | ({where: "MARK"} if where in ("method", "benchmark") else {})
    options = {"lam": "MARK"} if where == "option" else {}
    path = write_run(tmp_path, seed=0, tasks=3, name=name if where == "folder" else "run", options=options, **given)
    write_run(tmp_path, "ewc", 1, tasks=3, benchmark=given["benchmark"], options={"lam": 2.0})
    config = path / "config.toml"
    raw = config.read_text()
    if evil == "\ud800":
        config.write_bytes(raw.replace("MARK", name).encode("utf-8", "surrogatepass"))  # not UTF-8, as on a bad disk
    else:
        config.write_text(raw.replace('"MARK"', quoted))
    if where == "layer":
        drift = path / "drift.csv"
        drift.write_bytes(drift.read_bytes().replace(b"hidden.0.weight", name.encode("utf-8", "surrogatepass")))
    if where == "environment":
        (path / "environment.json").write_text(json.dumps({"machine": {name: name}}))
    if where == "error":
        (path / "result.json").write_text(json.dumps({"finished": False, "error": name}))
    html = page(read.find([tmp_path]))
    html.encode()
    assert evil not in html
    assert "digits" in Outline(html).text or where == "benchmark"
