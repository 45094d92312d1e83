"""``drcl table``, ``report`` and ``figures``: what is made of run directories."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from tests.lab.cli.stage import QUICK, call

import drcl
import drcl.lab.common.fields
import drcl.lab.runs.read


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("runs")
    for method in ("sgd", "drcl"):
        answer = call("run", "digits-permuted", "--method", method, "--out", out, *QUICK)
        assert answer.exit_code == 0, answer.output
    return out


def test_table_in_every_format(runs):
    text = call("table", runs).stdout
    assert "sgd" in text
    assert "drcl" in text
    assert call("table", runs, "--format", "markdown").stdout.startswith("### digits-permuted")
    assert r"\toprule" in call("table", runs, "-f", "latex").stdout
    rows = list(csv.DictReader(io.StringIO(call("table", runs, "-f", "csv").stdout)))
    assert {row["method"] for row in rows} == {"sgd", "drcl"}
    for row in rows:
        run = next(run for run in drcl.lab.runs.read.find([runs]) if run.method == row["method"])
        assert float(row["average_accuracy"]) == pytest.approx(float(run.matrix[-1].mean()), abs=1e-9)


def test_table_to_a_file(runs, tmp_path):
    assert call("table", runs, "-f", "csv", "-o", tmp_path / "deep" / "t.csv").exit_code == 0
    assert (tmp_path / "deep" / "t.csv").read_text() == call("table", runs, "-f", "csv").stdout


def test_report_and_figures(runs, tmp_path):
    answer = call("report", runs, "-o", tmp_path / "r.html", "--title", "Mine & yours")
    assert answer.exit_code == 0
    assert "2 finished of 2 runs" in answer.stdout
    assert "Mine &amp; yours" in (tmp_path / "r.html").read_text()
    assert call("figures", runs, "-o", tmp_path / "f", "--format", "svg").exit_code == 0
    files = list((tmp_path / "f").iterdir())
    assert files
    assert {file.suffix for file in files} == {".svg"}


@pytest.mark.parametrize("word", ["report", "table", "figures"])
def test_no_runs_is_bad_usage(word, tmp_path):
    assert call(word, tmp_path / "none").exit_code == 2
    answer = call(word, tmp_path)
    assert answer.exit_code == 2
    assert "there is no run in" in answer.stderr
