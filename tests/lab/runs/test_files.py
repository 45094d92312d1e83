"""Files of a run's directory, whole, cut short or damaged: read as far as they go, and what is wrong is told."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from tests.lab.report.fake_runs import write_run

from drcl.lab.runs import files
from drcl.lab.runs.files import RECORDS, read_records, record_cells, record_fields, to_record
from drcl.lab.runs.read import Run
from drcl.lab.runs.write import Table
from drcl.lab.training.changes import BINS
from drcl.lab.training.rows import ChangeRow, CurvePoint, DriftRow, IterationRow, LossPoint, StepRow, UpdateRow

R = np.array([[0.9, math.nan], [0.7, 0.8]])


def test_a_line_cut_by_a_kill_is_not_a_value(tmp_path):
    path = write_run(tmp_path, R=R, done=1)
    with (path / "accuracy.csv").open("a") as file:
        file.write("1,0.7,0.")  # it was going to be 0.8
    run = Run.read(path)
    assert run.tasks_done == 1
    assert run.problems == ()


@pytest.mark.parametrize(
    ("file", "text", "sentence"),
    [
        ("config.toml", "benchmark = ", "config.toml is damaged"),
        ("config.toml", 'benchmark = "b"\n', "config.toml does not say which method was run"),
        ("result.json", '{"finished": tr', "result.json is damaged"),
        ("cost.json", "[1, 2]", "cost.json is damaged (it holds a list, not a table)"),
        ("environment.json", "\0", "environment.json is damaged"),
        ("accuracy.csv", "", "accuracy.csv is empty"),
        ("accuracy.csv", "a,b\n", "accuracy.csv is damaged (its first line is not task,0,1,2,...)"),
        ("accuracy.csv", "task,0,1\n0,zero,\n", "accuracy.csv line 2 is damaged"),
        ("accuracy.csv", "task,0,1\n0,0.5\n", "accuracy.csv line 2 is damaged (3 entries are expected"),
        ("accuracy.csv", "task,0,1\n7,0.5,0.5\n", "accuracy.csv line 2 is damaged"),
        ("accuracy.csv", "task,0,1\n0,90.0,\n", "an accuracy is a fraction from 0 to 1"),
        ("accuracy.csv", "task,0,1\n0,0.5,\n0,0.6,\n", "accuracy.csv line 3 contradicts"),
        ("drift.csv", "task,layer\n", "drift.csv is damaged"),
        (
            "drift.csv",
            "task,layer,weights,unmoved,mean_change,largest_change,relative_change\n0,a,10,7,0,0,0\n",
            "drift.csv line 2 is damaged (unmoved is 7; it is a share from 0 to 1)",
        ),
        ("curve.csv", "task,epoch,step,loss,accuracy\n0,0\n", "curve.csv line 2 is damaged"),
    ],
)
def test_damage_is_told_in_a_sentence(tmp_path, file, text, sentence):
    path = write_run(tmp_path, R=R)
    (path / file).write_text(text)
    run = Run.read(path)
    assert any(sentence in problem for problem in run.problems), run.problems


def test_bytes_that_are_no_text(tmp_path):
    path = write_run(tmp_path, R=R)
    (path / "accuracy.csv").write_bytes(b"\xff\xfe\x00")
    run = Run.read(path)
    assert any("accuracy.csv cannot be read" in problem for problem in run.problems)
    assert not run.finished


def test_a_result_that_its_matrix_contradicts(tmp_path):
    path = write_run(tmp_path, R=R)
    result = json.loads((path / "result.json").read_text())
    result["average_accuracy"] = 0.99
    (path / "result.json").write_text(json.dumps(result))
    run = Run.read(path)
    assert run.problems == ("result.json says average_accuracy is 0.99 but accuracy.csv gives 0.75; the latter counts",)
    assert run.value("average_accuracy") == pytest.approx(0.75)


def test_curve_points_may_lack_an_accuracy(tmp_path):
    run = Run.read(write_run(tmp_path, R=R))
    assert len(run.curve) == 6
    assert math.isnan(run.curve[1].accuracy)
    assert run.curve[1].loss == pytest.approx(0.92)


def test_rows_become_what_they_were():
    row = files.to_drift_row(["1", "fc1", "10", "0.5", "0.25", "1.5", "0.125"])
    assert row == DriftRow(1, "fc1", 10, 0.5, 0.25, 1.5, 0.125)
    assert math.isnan(files.to_drift_row(["1", "fc1", "10", "0.5", "0.25", "1.5", ""]).relative_change)
    assert files.to_curve_point(["0", "1", "12", "0.5", "0.75"]) == CurvePoint(0, 1, 12, 0.5, 0.75)
    assert math.isnan(files.to_curve_point(["0", "1", "12", "0.5", ""]).accuracy)


@pytest.mark.parametrize("unmoved", ["-0.1", "1.5", "nan"])
def test_a_share_outside_of_its_range_is_refused(unmoved):
    with pytest.raises(ValueError, match="share from 0 to 1"):
        files.to_drift_row(["1", "fc1", "10", unmoved, "0", "0", "0"])


def test_a_matrix_with_holes_keeps_them(tmp_path):
    path = tmp_path / "accuracy.csv"
    path.write_text("task,0,1\n1,,0.5\n")
    problems: list[str] = []
    found = files.read_matrix(path, True, problems)
    assert problems == []
    assert np.isnan(found[0]).all()
    assert math.isnan(found[1, 0])
    assert found[1, 1] == 0.5


def test_a_file_that_is_not_there_is_empty_and_only_missed_where_it_is_needed(tmp_path):
    problems: list[str] = []
    assert files.read_mapping(tmp_path / "cost.json", json.loads, problems) == {}
    assert files.read_records(tmp_path / "curve.csv", files.CURVE_FIELDS, files.to_curve_point, True, problems) == []
    assert problems == []
    assert files.read_mapping(tmp_path / "config.toml", json.loads, problems, required=True) == {}
    assert problems == ["config.toml is missing, so it is not known what was run"]


@pytest.mark.parametrize(("value", "number"), [(3, 3.0), (0.5, 0.5), (True, None), ("3", None), (None, None)])
def test_only_numbers_are_numbers(value, number):
    found = files.number(value)
    assert math.isnan(found) if number is None else found == number


@pytest.mark.parametrize(
    "row",
    [
        LossPoint(1, 2, 30, 0.5, math.inf),
        StepRow(1, 0, 11, 0.1, 0.2, 0.05, 0.75, 0.01, 5.0),
        IterationRow(2, 3, 1e-9),
        UpdateRow(0, 99, -1e-4, 0.0),
        ChangeRow(3, "fc1", 10, 4, (1, 2, 3) + (0,) * (BINS - 3)),
    ],
    ids=lambda row: type(row).__name__,
)
def test_a_record_is_read_as_it_was_written(tmp_path, row):
    name, kind = next((name, kind) for name, kind in RECORDS.items() if isinstance(row, kind))
    table = Table(tmp_path / f"{name}.csv", record_fields(kind))
    table.append([record_cells(row)])
    problems: list[str] = []
    assert read_records(table.path, record_fields(kind), to_record(kind), True, problems) == [row]
    assert problems == []


def test_what_was_not_measured_is_an_empty_cell():
    row = StepRow(0, 0, 4, 0.1, *[math.nan] * 5)
    cells = record_cells(row)
    assert cells == [0, 0, 4, "0.1", "", "", "", "", ""]
    again = to_record(StepRow)([str(cell) for cell in cells])
    assert math.isnan(again.proposed)
    assert again.step_norm == 0.1


def test_a_histogram_whose_bins_do_not_add_up_is_refused():
    with pytest.raises(ValueError, match="do not add up to 10"):
        to_record(ChangeRow)(["0", "fc1", "10", "4", "1", *["0"] * (BINS - 1)])


@pytest.mark.parametrize("file", ["config.toml", "result.json", "cost.json", "environment.json"])
@pytest.mark.parametrize("depth", [60, 900, 100_000])
def test_tables_within_tables_are_told_and_not_followed(tmp_path, file, depth):
    path = write_run(tmp_path, R=R)
    nested = "[" * depth + "]" * depth
    (path / file).write_text(f"a = {nested}" if file.endswith("toml") else '{"a": ' + nested + "}")
    run = Run.read(path)
    assert any(sentence.startswith(f"{file} is damaged (it is nested") for sentence in run.problems)


def test_numbers_no_run_has_are_told_and_allocate_nothing(tmp_path):
    path = write_run(tmp_path, R=R)
    with (path / "drift.csv").open("a") as file:
        file.write("1000000000000,x,10,0.5,1,1,1\n-1,x,10,0.5,1,1,1\n1,x,-5,0.5,1,1,1\n")
    with (path / "curve.csv").open("a") as file:
        file.write("1000000000000,0,1,0.5,\n")
    run = Run.read(path)
    assert len(run.problems) == 4
    assert all("is damaged" in sentence for sentence in run.problems)
    (path / "accuracy.csv").write_text("task," + ",".join(map(str, range(100_000))) + "\n")
    assert any("it has 100000 tasks" in sentence for sentence in Run.read(path).problems)
    (path / "drift.csv").write_text("task,layer\n0," + "x" * 200_000 + "\n")
    assert any(sentence.startswith("drift.csv is damaged") for sentence in Run.read(path).problems)


@pytest.mark.parametrize("value", [10**400, math.inf, math.nan, True, "1", None, [1]])
def test_what_is_no_finite_number_is_not_known(value):
    assert math.isnan(files.number(value))


@pytest.mark.parametrize("task", ["-1", "1e3", "99999999999"])
def test_a_record_of_a_task_no_run_has_is_refused(task):
    with pytest.raises(ValueError, match=r"task|invalid literal"):
        to_record(IterationRow)([task, "1", "0.5"])
