"""Many runs in one file: read like a folder, and every changed character is noticed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.lab.report.fake_runs import write_run, write_runs

from drcl.lab.runs import pack
from drcl.lab.runs.read import Run, find
from drcl.lab.runs.verify import verify


@pytest.fixture
def folder(tmp_path) -> Path:
    return write_runs(tmp_path / "runs", ("sgd", "drcl"), seeds=2, tasks=3)


@pytest.fixture
def packed(folder) -> Path:
    path = folder.parent / "kept" / "study.jsonl"
    pack.write(path, [pack.of(run.path) for run in find([folder])])
    return path


def test_a_pack_reads_as_the_folder_it_was_made_of(folder, packed):
    for given in (packed, packed.parent):
        runs = find([given])
        assert len(runs) == 4
        for there, here in zip(find([folder]), runs, strict=True):
            assert here.path == packed / there.path.name
            assert (here.config, here.cost, here.result, here.drift) == (
                there.config,
                there.cost,
                there.result,
                there.drift,
            )
            np.testing.assert_array_equal(here.matrix, there.matrix)
            assert here.finished
            assert verify(here).state == "whole"


def test_files_come_back_word_for_word(folder, packed, tmp_path):
    (tmp_path / "weights.safetensors").write_bytes(b"\xff")
    for one in pack.read(packed):
        again = one.write(tmp_path / "again")
        assert {path.name for path in again.iterdir()} == {*one.files, "digests.json"}
        for name in one.files:
            assert (again / name).read_bytes() == (folder / one.name / name).read_bytes()


def test_weights_checkpoints_and_digests_stay_behind(tmp_path):
    path = write_run(tmp_path)
    (path / "model.safetensors").write_bytes(b"\xff\x00")
    (path / "digests.json").write_text("{}")
    (path / "checkpoint").mkdir()
    names = set(pack.of(path).files)
    assert {"config.toml", "accuracy.csv", "result.json"} <= names
    assert not names & {"model.safetensors", "digests.json", "checkpoint"}


@pytest.mark.parametrize("where", [0.1, 0.5, 0.9])
def test_a_changed_character_breaks_its_run_alone(packed, where):
    lines = packed.read_text(encoding="utf-8").split("\n")
    at = int(where * len(lines[2]))
    lines[2] = lines[2][:at] + ("0" if lines[2][at] != "0" else "1") + lines[2][at + 1 :]
    packed.write_text("\n".join(lines), encoding="utf-8")
    states = [verify(run).state for run in find([packed])]
    assert sorted(states) == ["damaged", "whole", "whole", "whole"]


@pytest.mark.parametrize("line", ["{", "[]", '{"run": "a"}', '{"run": "../a", "files": {}, "digest": ""}', "null"])
def test_a_line_that_is_no_run_is_listed_and_writes_nothing_outside(packed, line):
    with packed.open("a", encoding="utf-8") as file:
        file.write(line + "\n")
    (broken,) = [run for run in find([packed]) if not run.finished]
    assert broken.path == packed / "line-6"
    assert "line 6 of the pack is damaged" in broken.problems[0]


def test_a_file_name_that_leaves_the_folder_is_refused():
    line = json.dumps({"run": "a", "files": {"../x": ""}, "digest": ""})
    assert pack.Packed.parse(line, 2) == pack.Packed(
        "line-2", {}, "line 2 of the pack is damaged (it has names that are not names of files)"
    )


def test_other_jsonl_files_are_no_packs(tmp_path):
    (tmp_path / "log.jsonl").write_text('{"loss": 1}\n')
    assert not pack.is_pack(tmp_path / "log.jsonl")
    assert find([tmp_path]) == []


def test_one_name_twice_is_refused_and_a_pack_can_grow(folder, packed, tmp_path):
    first = Run.read(next(folder.iterdir()))
    with pytest.raises(ValueError, match="two runs are named"):
        pack.write(tmp_path / "p.jsonl", [pack.of(first.path)] * 2)
    more = write_run(tmp_path / "more", method="ewc")
    pack.write(packed, [*(pack.of(run.path) for run in find([packed])), pack.of(more)])
    assert len(find([packed])) == 5
