"""The files a run leaves while it goes on: rows that grow, and are cut back to where a checkpoint knew them."""

from __future__ import annotations

import hashlib
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
    assert table.mark() == {"length": 0, "sha256": hashlib.sha256(b"").hexdigest()}
    table.append([[1, "x,y"]])
    table.append([[2, ""], [3, "z"]])
    assert table.path.read_text() == 'a,b\n1,"x,y"\n2,\n3,z\n'
    written = table.path.read_bytes()
    assert table.mark() == {"length": len(written), "sha256": hashlib.sha256(written).hexdigest()}


def test_a_table_is_cut_back_and_says_when_it_has_lost_or_changed_lines(tmp_path):
    table = Table(tmp_path / "t.csv", ["a"])
    none = table.mark()
    assert table.wrong(none) == ""
    assert table.wrong(5).endswith("is missing")
    table.append([[1]])
    mark = table.mark()
    table.append([[2]])
    assert table.wrong(mark) == ""
    table.cut(mark)
    assert table.path.read_text() == "a\n1\n"
    assert table.mark() == mark
    table.append([[3]])
    assert table.mark()["sha256"] == hashlib.sha256(b"a\n1\n3\n").hexdigest()
    assert table.wrong(mark["length"]) == ""  # earlier versions knew the length only
    table.path.write_text("a\n9\n3\n")
    assert table.wrong(mark).endswith("has been changed")
    table.path.write_text("a\n1")
    assert table.wrong(mark).endswith("has lost lines")
    table.cut(none)
    assert not table.path.exists()


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


def stopped(tmp_path) -> None:
    """A run with two checkpoints and a curve point in each."""
    made = records(tmp_path)
    made.row(0, [0.5, math.nan])
    for k in range(2):
        made.curve(CurvePoint(0, 0, k, 2.0, math.nan))
        made.save(state([[0.5, math.nan], [math.nan, float(k)]]))


@pytest.mark.parametrize("text", ["task,0,1\n", "task,0,1\n0,0.6,\n", ""])
def test_a_damaged_matrix_is_made_good_from_the_checkpoint(tmp_path, text):
    made = records(tmp_path)
    made.row(0, [0.5, math.nan])
    made.save(state([[0.5, math.nan], [math.nan, math.nan]]))
    (tmp_path / "accuracy.csv").write_text(text)
    said: list[str] = []
    assert records(tmp_path, tell=said.append).load("cpu") is not None
    assert len(said) == 1
    assert said[0].endswith("it is written again from the checkpoint")
    assert (tmp_path / "accuracy.csv").read_text() == "task,0,1\n0,0.5,\n"


def test_a_row_that_was_changed_leads_back_to_the_checkpoint_before_it(tmp_path):
    stopped(tmp_path)
    path = tmp_path / "curve.csv"
    path.write_text(path.read_text().replace("0,0,1,2.0", "0,0,1,3.0"))
    said: list[str] = []
    found = records(tmp_path, tell=said.append).load("cpu")
    assert found is not None
    assert found["matrix"][1][1] == 0.0  # the first of the two
    assert len(said) == 1
    assert "curve.csv has been changed" in said[0]
    assert "the one before it is used" in said[0]
    assert path.read_text().splitlines()[1:] == ["0,0,0,2.0,"]


@pytest.mark.parametrize("harm", ["changed", "cut", "gone"])
def test_rows_that_no_checkpoint_can_bring_back_are_made_again_from_the_start(tmp_path, harm):
    stopped(tmp_path)
    path = tmp_path / "curve.csv"
    if harm == "gone":
        path.unlink()
    else:
        path.write_text("task" if harm == "cut" else path.read_text().replace("0,0,0,2.0", "0,0,0,3.0"))
    said: list[str] = []
    assert records(tmp_path, tell=said.append).load("cpu") is None
    assert len(said) == 2
    assert "the run starts again" in said[1]
    assert not path.exists()
    assert not (tmp_path / "accuracy.csv").exists()


@pytest.mark.parametrize("value", [0.1, 1 / 3, 1e-300, 1.0])
def test_numbers_are_written_in_full(tmp_path, value):
    records(tmp_path).row(0, [value, math.nan])
    assert float((tmp_path / "accuracy.csv").read_text().splitlines()[1].split(",")[1]) == value
