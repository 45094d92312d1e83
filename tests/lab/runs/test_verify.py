"""Which runs are whole: each file of a run damaged in turn, and checkpoints of runs that are not finished."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.lab.report.fake_runs import write_run
from tests.lab.runs.test_execute import cut_at, small

from drcl.lab.data.lock import locked
from drcl.lab.runs.execute import execute
from drcl.lab.runs.read import Run
from drcl.lab.runs.verify import Verdict, verify


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "finished"
    execute(small("drcl"), path)
    return path


@pytest.fixture(scope="module")
def stopped(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "stopped"

    with pytest.MonkeyPatch.context() as patch:
        cut_at(patch, 14, small("drcl", checkpoint_every=2), path)
    (path / "result.json").unlink()  # a kill leaves no reason behind
    return path


def copy(source: Path, to: Path) -> Path:
    shutil.copytree(source, to / "run")
    return to / "run"


def looked_at(path: Path) -> Verdict:
    return verify(Run.read(path))


def flip(path: Path, at: int = -12) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 2
    path.write_bytes(data)


def test_a_finished_run_is_whole_and_lists_every_file(finished):
    assert looked_at(finished) == Verdict(finished, "whole")
    names = {path.name for path in finished.iterdir() if path.is_file()}
    listed = set(Run.read(finished).path.joinpath("digests.json").read_text().split('"'))
    assert names - {".lock", "digests.json"} <= listed


FILES = ["config.toml", "environment.json", "accuracy.csv", "drift.csv", "curve.csv", "cost.json", "model.safetensors"]


@pytest.mark.parametrize("name", [*FILES, "result.json", "digests.json"])
def test_one_bit_of_any_file_makes_it_damaged(finished, tmp_path, name):
    path = copy(finished, tmp_path)
    flip(path / name)
    found = looked_at(path)
    assert found.state == "damaged"
    assert found.words[0].startswith(f"{name} is damaged")
    assert not Run.read(path).finished


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_makes_it_damaged(finished, tmp_path, name):
    path = copy(finished, tmp_path)
    (path / name).unlink()
    assert looked_at(path).state == "damaged"
    assert f"{name} is missing" in looked_at(path).words
    assert not Run.read(path).finished


def test_without_result_it_is_unfinished_and_without_digests_it_says_so(finished, tmp_path):
    path = copy(finished, tmp_path)
    kept = (path / "result.json").read_bytes()
    (path / "result.json").unlink()
    assert looked_at(path).state == "unfinished"
    (path / "result.json").write_bytes(kept)
    (path / "digests.json").unlink()
    assert looked_at(path).state == "no digests stored"


@pytest.mark.parametrize("name", ["state.json", "tensors.safetensors"])
def test_the_kept_checkpoint_of_a_finished_run_counts(finished, tmp_path, name):
    path = copy(finished, tmp_path)
    (checkpoint,) = (path / "checkpoint").iterdir()
    flip(checkpoint / name)
    found = looked_at(path)
    assert found.state == "damaged"
    assert "checkpoint" in found.words[0]
    assert checkpoint.is_dir()  # looking changes nothing


def test_a_stopped_run_is_unfinished_until_its_checkpoint_or_rows_are_damaged(stopped, tmp_path):
    found = looked_at(stopped)
    assert found.state == "unfinished"
    assert found.words[0] == "1 of 2 tasks done"
    path = copy(stopped, tmp_path)
    flip(path / "curve.csv", 40)
    assert looked_at(path) == Verdict(path, "damaged", ("curve.csv has been changed",))
    shutil.rmtree(path)
    path = copy(stopped, tmp_path)
    (path / "curve.csv").unlink()
    assert looked_at(path) == Verdict(path, "damaged", ("curve.csv is missing",))
    shutil.rmtree(path)
    path = copy(stopped, tmp_path)
    flip(max((path / "checkpoint").iterdir()) / "tensors.safetensors")
    assert looked_at(path).state == "damaged"


def test_runs_of_earlier_versions_have_no_digests(tmp_path):
    path = write_run(tmp_path)
    assert looked_at(path).state == "no digests stored"
    (path / "accuracy.csv").unlink()
    found = looked_at(path)
    assert found.state == "damaged"
    assert found.words == ("its accuracy matrix is incomplete",)


def test_a_run_at_work_is_not_judged(finished, tmp_path):
    path = copy(finished, tmp_path)
    with locked(path / ".lock", patience=0):
        assert looked_at(path).state == "running"
