"""The page as a tool, in a real browser: sort, hide, point, and all of it without a script."""

import base64
import hashlib
import json
import re

import pytest
from tests.lab.report import browser
from tests.lab.report.fake_runs import write_run, write_runs
from tests.lab.report.outline import Outline

from drcl.lab.report.page import page, write_report
from drcl.lab.runs import read

_BROWSER = browser.find()
needs_browser = pytest.mark.skipif(_BROWSER is None, reason="no chromium or chrome on this machine")


@pytest.fixture(scope="module")
def two_benchmarks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tools")
    write_runs(folder / "runs", ("sgd", "ewc", "drcl", "joint"), tasks=4)
    for method in ("drcl", "sgd"):
        write_run(folder / "runs", method, 0, benchmark="another", tasks=3)
    return write_report(read.find([folder / "runs"]), folder / "report.html")


@pytest.fixture(scope="module")
def chrome():
    with browser.Browser(_BROWSER) as window:
        yield window


@pytest.fixture(params=[(1280, False), (400, True)], ids=["wide", "narrow-dark"])
def shown(request, chrome, two_benchmarks):
    """The page in both kinds of window; no test may leave an error on its console."""
    width, dark = request.param
    chrome.errors.clear()
    chrome.open(two_benchmarks, width, dark=dark)
    yield chrome
    assert chrome.errors == []


_ORDER = "[...document.querySelectorAll('#b1 .results tbody th')].map(e => e.textContent.trim())"
_SEEN = "[...document.querySelectorAll('{}')].filter(e => e.getBoundingClientRect().width > 0).length"


def _seen(window, selector):
    return window.evaluate(_SEEN.format(selector))


@needs_browser
def test_a_click_on_a_heading_sorts_and_a_third_one_restores(chrome, two_benchmarks):
    chrome.open(two_benchmarks, 1280)
    listed = chrome.evaluate(_ORDER)
    assert listed == ["sgd", "ewc", "drcl", "joint"]
    chrome.click("#b1 .results th:nth-child(3) button")  # average accuracy, the largest first
    assert chrome.evaluate(_ORDER) == ["joint", "drcl", "ewc", "sgd"]
    heading = "document.querySelector('#b1 .results th:nth-child(3)').getAttribute('aria-sort')"
    assert chrome.evaluate(heading) == "descending"
    chrome.click("#b1 .results th:nth-child(3) button")
    assert chrome.evaluate(_ORDER) == ["sgd", "ewc", "drcl", "joint"]
    assert chrome.evaluate(heading) == "ascending"
    chrome.click("#b1 .results th:nth-child(4) button")  # backward transfer: the bound has none and comes last
    assert chrome.evaluate(_ORDER) == ["drcl", "ewc", "sgd", "joint"]
    chrome.click("#b1 .results th:nth-child(4) button")
    assert chrome.evaluate(_ORDER)[-1] == "joint"
    chrome.click("#b1 .results th:nth-child(4) button")
    assert chrome.evaluate(_ORDER) == listed
    chrome.click("#b1 .results th:first-child button")
    assert chrome.evaluate(_ORDER) == ["drcl", "ewc", "joint", "sgd"]


@needs_browser
def test_a_narrow_window_sorts_by_a_list(chrome, two_benchmarks):
    chrome.open(two_benchmarks, 400)
    assert _seen(chrome, "#b1 .order select") == 1
    choose = "(() => {{ const s = document.querySelector('#b1 .order select'); s.value = '{}';"
    choose += "s.dispatchEvent(new Event('change')); }})()"
    chrome.evaluate(choose.format(2))
    assert chrome.evaluate(_ORDER) == ["joint", "drcl", "ewc", "sgd"]
    chrome.evaluate(choose.format(""))
    assert chrome.evaluate(_ORDER) == ["sgd", "ewc", "drcl", "joint"]


@needs_browser
def test_a_method_is_hidden_everywhere_and_shown_again(shown):
    key = shown.evaluate("document.querySelector('#b1 .results tbody tr').dataset.m")  # sgd
    parts = f'[data-m="{key}"]'
    everywhere = ["table " + parts, "figure svg g" + parts, "figure" + parts, ".method" + parts]
    before = {selector: _seen(shown, selector) for selector in everywhere}
    assert before["table " + parts] == 2  # one row on each benchmark
    assert all(before.values()), before
    shown.click(f'[data-show-m="{key}"]')
    assert [_seen(shown, selector) for selector in everywhere] == [0, 0, 0, 0]
    assert _seen(shown, "#b1 .results tbody tr") == 3
    assert shown.evaluate("document.documentElement.scrollWidth") <= shown.evaluate("innerWidth")
    shown.click("[data-show-all]")
    assert {selector: _seen(shown, selector) for selector in everywhere} == before


@needs_browser
def test_benchmarks_are_chosen(shown):
    assert _seen(shown, "section.benchmark") == 2
    shown.click('[data-show-b="b0"]')
    assert _seen(shown, "section.benchmark") == 1
    assert _seen(shown, "nav a") == 1
    shown.click('[data-show-b="b0"]')
    assert _seen(shown, "section.benchmark") == 2


@needs_browser
@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("#b1 figure circle.hit", r"^(sgd|ewc|drcl), task 1: \d+\.\d( ± \d+\.\d)?$"),
        ("#b1 figure rect.hit", r"^task 1 after task 1: \d+\.\d %$"),
        ("#b1 .tile abbr", r"^Mean test accuracy over all tasks"),
    ],
    ids=["curve", "matrix", "word"],
)
def test_pointing_shows_the_value(shown, place, words):
    assert _seen(shown, ".tip") == 0
    shown.point(place)
    assert re.match(words, shown.evaluate("document.querySelector('.tip').textContent"))
    box = shown.evaluate(
        "(r => [r.left, r.right, r.top, innerWidth])(document.querySelector('.tip').getBoundingClientRect())"
    )
    left, right, top, width = box
    assert left >= 0
    assert top >= 0
    assert right <= width
    shown.point("h1")
    assert _seen(shown, ".tip") == 0


@needs_browser
def test_a_finger_shows_the_words_and_another_tap_hides_them(chrome, two_benchmarks):
    chrome.open(two_benchmarks, 400)
    chrome.tap(".tile abbr")
    assert chrome.evaluate("document.querySelector('.tip').textContent").startswith("Mean test accuracy")
    assert _seen(chrome, ".tip") == 1
    chrome.tap("h1")
    assert _seen(chrome, ".tip") == 0


@needs_browser
def test_the_values_lie_on_what_is_drawn(chrome, two_benchmarks):
    """A mark with a text is at the marker that the text is about."""
    chrome.open(two_benchmarks, 1280)
    far = chrome.evaluate("""
    (() => {
      const middle = e => { const r = e.getBoundingClientRect(); return [r.left + r.width / 2, r.top + r.height / 2]; };
      const figure = document.querySelector('#b1 figure svg');
      return [...figure.querySelectorAll('circle.hit')].map(hit => {
        const [x, y] = middle(hit);
        const uses = [...figure.querySelectorAll(`g[data-m="${hit.dataset.m}"] use`)].map(middle);
        return Math.min(...uses.map(([a, b]) => Math.hypot(a - x, b - y)));
      });
    })()
    """)
    assert len(far) == 12  # three methods, four tasks
    assert max(far) < 2


@needs_browser
def test_without_scripts_everything_is_shown_and_nothing_is_dead(chrome, two_benchmarks, tmp_path):
    bare = tmp_path / "bare.html"
    bare.write_text(two_benchmarks.read_text(encoding="utf-8").replace("<script>", "<script>//", 1), encoding="utf-8")
    chrome.errors.clear()
    chrome.open(bare, 1280)  # the script is not the one the page knows, and so it does not run
    chrome.errors.clear()
    assert chrome.evaluate("document.querySelectorAll('.sort').length") == 0
    assert _seen(chrome, ".tools") == 0
    assert _seen(chrome, ".order") == 0
    assert _seen(chrome, "#b1 .results tbody tr") == 4
    assert chrome.evaluate("document.querySelector('#b1 circle.hit title').textContent").startswith("sgd, task 1: ")
    assert chrome.evaluate("document.querySelector('thead abbr').title").startswith("Mean test accuracy")
    assert _seen(chrome, ".glossary summary") == 1


def test_the_policy_knows_the_script_and_no_other(two_benchmarks):
    html = two_benchmarks.read_text(encoding="utf-8")
    (script,) = re.findall(r"<script>(.*?)</script>", html, flags=re.S)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = next(a["content"] for tag, a in Outline(html).tags if a.get("http-equiv"))
    assert policy == f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:"
    assert len(script) < 100_000
    assert "fetch(" not in script
    assert "innerHTML" not in script


def test_every_word_of_the_table_is_explained(two_benchmarks):
    html = two_benchmarks.read_text(encoding="utf-8")
    for word in ("A_inc", "stiffness", "effective stability", "directions held"):
        assert re.search(rf"<dt>{word}</dt><dd>[^<]{{20,}}</dd>", html), word
    for heading in re.findall(r'<th scope="col">(.*?)</th>', html):
        assert "<abbr title=" in heading or heading in ("method", "seeds", "run directory", "seed"), heading


def test_a_method_that_holds_directions_shows_their_share(tmp_path):
    write_run(tmp_path, "sgd", 0, tasks=3)
    path = write_run(tmp_path, "drcl", 0, tasks=3)
    result = json.loads((path / "result.json").read_text())
    result["per_task"] = {"directions_held": [None, 0.6, 0.7]}
    (path / "result.json").write_text(json.dumps(result))
    text = Outline(page(read.find([tmp_path]))).text
    assert "65.0 directions held" in text
    assert "holds 65 % of the directions of its layers" in text
    assert "drcl held 65.0 % of the directions" in text
    assert "sgd moved every weight at every task." in text
    assert "drcl: left exactly in place" not in text  # a map of single weights says nothing about directions


def test_a_method_that_only_pulls_directions_back_is_not_said_to_hold_them(tmp_path):
    path = write_run(tmp_path, "drcl", 0, tasks=3)
    result = json.loads((path / "result.json").read_text())
    result["per_task"] = {"directions_held": [None, 0.002, 0.003]}
    (path / "result.json").write_text(json.dumps(result))
    text = Outline(page(read.find([tmp_path]))).text
    assert "drcl pulled directions back and held almost none of them exactly." in text
    assert "0 % of the directions" not in text
