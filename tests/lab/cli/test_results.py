"""``drcl table``, ``report`` and ``figures``: what is made of run directories."""

from __future__ import annotations

import csv
import io
import shutil
from pathlib import Path

import pytest
from tests.lab.cli.stage import QUICK, call
from tests.lab.report.fake_runs import write_run

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
    files = [path for path in (tmp_path / "f").rglob("*") if path.is_file()]
    assert files
    assert {file.suffix for file in files} == {".svg"}


@pytest.mark.parametrize("word", ["report", "table", "figures"])
def test_no_runs_is_bad_usage(word, tmp_path):
    assert call(word, tmp_path / "none").exit_code == 2
    answer = call(word, tmp_path)
    assert answer.exit_code == 2
    assert "there is no run in" in answer.stderr


def test_verify_says_which_runs_are_whole(runs, tmp_path):
    answer = call("verify", runs)
    assert answer.exit_code == 0
    assert answer.stdout.count("  whole") == 2
    shutil.copytree(runs, tmp_path / "runs")
    write_run(tmp_path / "runs", "ewc", name="old")
    write_run(tmp_path / "runs", "ewc", 1, name="half", done=3)
    (victim,) = (tmp_path / "runs").glob("*drcl*")
    (victim / "model.safetensors").write_bytes(b"")
    answer = call("verify", tmp_path / "runs")
    assert answer.exit_code == 1
    lines = {line.split("  ")[0].rpartition("/")[2]: line for line in answer.stdout.splitlines()}
    assert "no digests stored" in lines["old"]
    assert "unfinished: 3 of 8 tasks done" in lines["half"]
    assert "damaged: model.safetensors is damaged" in lines[victim.name]
    assert "1 whole, 1 unfinished, 1 no digests stored, 1 damaged" in answer.stdout
    assert "Traceback" not in answer.output


@pytest.mark.parametrize("name", ["model.safetensors", "result.json", "accuracy.csv", "config.toml"])
def test_a_damaged_run_is_listed_as_broken_and_not_counted(runs, tmp_path, name):
    shutil.copytree(runs, tmp_path / "runs")
    (victim,) = (tmp_path / "runs").glob("*drcl*")
    (victim / name).write_bytes(b"\0")
    answer = call("table", tmp_path / "runs")
    assert answer.exit_code == 0
    assert f"{name} is damaged" in " ".join(answer.stdout.split())
    answer = call("report", tmp_path / "runs", "-o", tmp_path / "r.html")
    assert answer.exit_code == 0, answer.output
    assert "1 finished of 2 runs" in answer.stdout
    assert f"{name} is damaged" in (tmp_path / "r.html").read_text()


def test_the_runs_of_earlier_versions_are_still_read(runs, tmp_path):
    """They had no digests."""
    kept = tmp_path / "earlier"
    shutil.copytree(runs, kept)
    for digests in kept.rglob("digests.json"):
        digests.unlink()
    answer = call("verify", kept)
    assert answer.exit_code == 0
    assert "no digests stored" in answer.stdout
    assert "not counted" not in call("table", kept).stdout


def test_a_pack_is_read_like_the_folder(runs, tmp_path):
    file = tmp_path / "kept.jsonl"
    answer = call("pack", runs, "-o", file)
    assert answer.exit_code == 0
    assert "holds 2 runs" in answer.stdout
    assert call("table", file, "-f", "csv").stdout == call("table", runs, "-f", "csv").stdout
    assert "2 whole" in call("verify", file).stdout


def test_a_pack_refuses_other_names_and_unfinished_runs(runs, tmp_path):
    assert "ends in .jsonl" in call("pack", runs, "-o", tmp_path / "kept.csv").stderr
    write_run(tmp_path / "cut", tasks=4, done=2)
    answer = call("pack", tmp_path / "cut", "-o", tmp_path / "kept.jsonl")
    assert answer.exit_code == 2
    assert "finished runs only" in answer.stderr
    assert not (tmp_path / "kept.jsonl").exists()


def test_unpacked_runs_are_finished_whole_and_not_written_twice(runs, tmp_path):
    file, again = tmp_path / "kept.jsonl", tmp_path / "again"
    call("pack", runs, "-o", file)
    answer = call("unpack", file, "-o", again)
    assert answer.exit_code == 0
    assert "2 runs written" in answer.stdout
    assert call("table", again, "-f", "csv").stdout == call("table", runs, "-f", "csv").stdout
    assert "2 whole" in call("verify", again).stdout
    one = next(path for path in again.iterdir() if path.is_dir())
    (one / "accuracy.csv").unlink()
    answer = call("unpack", file, "-o", again)
    assert "0 runs written, 2 more were already there" in answer.stdout
    assert not (one / "accuracy.csv").exists()


def test_unpack_takes_whole_packs_only(runs, tmp_path):
    file = tmp_path / "kept.jsonl"
    call("pack", runs, "-o", file)
    assert "is not a pack" in call("unpack", runs, "-o", tmp_path / "again").stderr
    file.write_text(file.read_text().replace('\\"finished\\": true', '\\"finished\\": True'))
    answer = call("unpack", file, "-o", tmp_path / "again")
    assert answer.exit_code != 0
    assert not (tmp_path / "again").exists()
