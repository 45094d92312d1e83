"""The files a run leaves while it goes on: rows that grow, and are cut back to where a checkpoint knew them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from drcl.lab.runs.files import CURVE_FIELDS, DRIFT_FIELDS
from drcl.lab.runs.write import Records, Table
from drcl.lab.training.events import Event
from drcl.lab.training.rows import CurvePoint, DriftRow


def records(directory: Path, **more) -> Records:
    given = {"progress": None, "loggers": (), "tell": lambda sentence: None} | more
    return Records(directory, 2, **given)


def state(matrix: list[list[float]]):
    return lambda: {"matrix": matrix, "weights": torch.arange(3.0)}


def test_a_table_has_its_header_once_and_grows(tmp_path):
    table = Table(tmp_path / "t.csv", ["a", "b"])
    assert table.mark() == 0
    table.append([[1, "x,y"]])
    table.append([[2, ""], [3, "z"]])
    assert table.path.read_text() == 'a,b\n1,"x,y"\n2,\n3,z\n'
    assert table.mark() == table.path.stat().st_size


def test_a_table_is_cut_back_and_says_when_it_has_lost_lines(tmp_path):
    table = Table(tmp_path / "t.csv", ["a"])
    assert table.cut(0)
    assert not table.cut(5)
    table.append([[1]])
    length = table.mark()
    table.append([[2]])
    assert table.cut(length)
    assert table.path.read_text() == "a\n1\n"
    assert not table.cut(length + 1)
    assert table.path.read_text() == "a\n1\n"


def test_rows_are_written_as_they_come(tmp_path):
    made = records(tmp_path)
    made.curve(CurvePoint(0, 0, 3, 0.5, math.nan))
    made.drift([DriftRow(0, "fc1", 10, 0.5, 0.25, 1.5, math.nan)])
    made.row(0, [0.75, math.nan])
    assert (tmp_path / "curve.csv").read_text() == ",".join(CURVE_FIELDS) + "\n0,0,3,0.5,\n"
    assert (tmp_path / "drift.csv").read_text() == ",".join(DRIFT_FIELDS) + "\n0,fc1,10,0.5,0.25,1.5,\n"
    assert (tmp_path / "accuracy.csv").read_text() == "task,0,1\n0,0.75,\n"
    made.drift([])
    assert (tmp_path / "drift.csv").read_text().count("\n") == 2


def test_events_and_numbers_go_to_whoever_asked(tmp_path):
    events: list[Event] = []
    logged: list[tuple[dict[str, float], int]] = []

    class Log:
        def log(self, values, step):
            logged.append((values, step))

        def close(self): ...

    made = records(tmp_path, progress=events.append, loggers=[Log(), Log()])
    made.event(Event("start"))
    made.log({"loss": 1.0}, 4)
    assert [event.kind for event in events] == ["start"]
    assert logged == [({"loss": 1.0}, 4)] * 2


def test_after_a_resume_the_files_are_as_the_checkpoint_knew_them(tmp_path):
    made = records(tmp_path)
    made.row(0, [0.5, math.nan])
    made.curve(CurvePoint(0, 0, 1, 2.0, math.nan))
    made.save(state([[0.5, math.nan], [math.nan, math.nan]]))
    kept = {name: table.path.read_bytes() for name, table in made.tables.items() if table.path.exists()}
    made.curve(CurvePoint(1, 0, 1, 1.0, math.nan))
    made.drift([DriftRow(1, "fc1", 10, 0.5, 0.25, 1.5, 0.1)])
    made.row(1, [0.4, 0.9])
    again = records(tmp_path)
    found = again.load("cpu")
    assert found is not None
    assert found["matrix"][0][0] == 0.5
    assert torch.equal(found["weights"], torch.arange(3.0))
    assert (tmp_path / "accuracy.csv").read_bytes() == kept["accuracy"]
    assert (tmp_path / "curve.csv").read_bytes() == kept["curve"]
    assert not (tmp_path / "drift.csv").exists() or (tmp_path / "drift.csv").read_bytes() == b""


def test_without_a_checkpoint_everything_begins_again(tmp_path):
    made = records(tmp_path)
    made.row(0, [0.5, math.nan])
    assert records(tmp_path).load("cpu") is None
    assert not (tmp_path / "accuracy.csv").exists()


def test_lost_lines_are_told_and_the_matrix_is_made_good(tmp_path):
    made = records(tmp_path)
    made.row(0, [0.5, math.nan])
    made.curve(CurvePoint(0, 0, 1, 2.0, math.nan))
    made.save(state([[0.5, math.nan], [math.nan, math.nan]]))
    (tmp_path / "accuracy.csv").write_text("task,0,1\n")
    (tmp_path / "curve.csv").write_text("task")
    said: list[str] = []
    assert records(tmp_path, tell=said.append).load("cpu") is not None
    assert len(said) == 2
    assert all("has lost lines" in sentence for sentence in said)
    assert (tmp_path / "accuracy.csv").read_text() == "task,0,1\n0,0.5,\n"


@pytest.mark.parametrize("value", [0.1, 1 / 3, 1e-300, 1.0])
def test_numbers_are_written_in_full(tmp_path, value):
    records(tmp_path).row(0, [value, math.nan])
    assert float((tmp_path / "accuracy.csv").read_text().splitlines()[1].split(",")[1]) == value
