"""A run's directory is read as it is: whole, unfinished, cut by a kill, damaged or contradicting itself."""

import json
import math

import numpy as np
import pytest
from tests.lab.report.fake_runs import write_matrix, write_run, write_runs

from drcl.lab.runs import read
from drcl.lab.runs.read import Run
from drcl.lab.runs.verify import verify

R = np.array([[0.9, math.nan], [0.7, 0.8]])


def test_a_finished_run_gives_its_numbers(tmp_path):
    path = write_run(tmp_path, "drcl", 3, R=R, seconds=10.0)
    run = Run.read(path)
    assert (run.benchmark, run.method, run.seed) == ("digits-permuted", "drcl", 3)
    assert run.finished
    assert run.status == "finished"
    assert run.problems == ()
    np.testing.assert_array_equal(run.matrix, R)
    assert run.value("average_accuracy") == pytest.approx(0.75)  # (0.7 + 0.8) / 2
    assert run.value("backward_transfer") == pytest.approx(-0.2)
    assert run.value("learning_seconds") == pytest.approx(10.0)  # 9.5 training + 0.5 consolidation
    assert run.value("stiffness") == 1.25
    assert run.value("state_bytes") == 562_256
    assert run.value("peak_bytes") == 64_000_000


def test_an_undefined_value_keeps_its_reason(tmp_path):
    run = Run.read(write_run(tmp_path, R=R))
    assert math.isnan(run.value("residual"))
    assert run.value("residual").reason == "it was not measured"
    assert run.value("no_such_measure").reason == "it was not measured"


def test_unmoved_is_weighted_by_layer_size_and_leaves_out_the_first_task(tmp_path):
    path = write_run(tmp_path, R=R)
    lines = ["task,layer,weights,unmoved,mean_change,largest_change,relative_change"]
    lines += ["0,a,100,0.0,1,1,1", "0,b,300,0.0,1,1,1", "1,a,100,0.2,1,1,1", "1,b,300,1.0,0,0,0"]
    (path / "drift.csv").write_text("\n".join(lines) + "\n")
    run = Run.read(path)
    assert run.unmoved_by_task() == {0: 0.0, 1: pytest.approx(0.8)}  # (0.2 * 100 + 1 * 300) / 400
    assert run.value("unmoved") == pytest.approx(0.8)


def test_a_repeated_drift_row_counts_once_with_its_later_value(tmp_path):
    path = write_run(tmp_path, R=R)
    lines = ["task,layer,weights,unmoved,mean_change,largest_change,relative_change"]
    lines += ["1,a,100,0.2,1,1,1", "1,b,100,0.4,1,1,1", "1,a,100,0.6,1,1,1"]
    (path / "drift.csv").write_text("\n".join(lines) + "\n")
    assert Run.read(path).value("unmoved") == pytest.approx(0.5)  # (0.6 + 0.4) / 2


def test_an_unfinished_run_says_how_far_it_came(tmp_path):
    run = Run.read(write_run(tmp_path, tasks=8, done=3))
    assert not run.finished
    assert (run.tasks, run.tasks_done) == (8, 3)
    assert run.status == "unfinished, 3 of 8 tasks done"
    assert run.problems == ()


def test_a_run_that_just_began(tmp_path):
    path = tmp_path / "run"
    path.mkdir()
    (path / "config.toml").write_text('benchmark = "b"\nmethod = "m"\nseed = 0\n')
    run = Run.read(path)
    assert run.status == "unfinished, no task done yet"
    assert run.problems == ()
    assert math.isnan(run.value("average_accuracy"))


def test_a_failed_run_says_why(tmp_path):
    path = write_run(tmp_path, done=2)
    (path / "result.json").write_text(json.dumps({"finished": False, "error": "the loss became NaN"}))
    assert Run.read(path).status == "failed: the loss became NaN"


def test_finished_without_its_last_row_is_not_finished(tmp_path):
    path = write_run(tmp_path, R=R)
    write_matrix(path / "accuracy.csv", R, rows=1)
    run = Run.read(path)
    assert not run.finished
    assert run.status == "broken: its accuracy matrix is incomplete"


def test_missing_costs_are_told(tmp_path):
    path = write_run(tmp_path, R=R)
    (path / "cost.json").unlink()
    run = Run.read(path)
    assert "cost.json is missing" in run.problems[0]
    assert math.isnan(run.value("learning_seconds"))
    assert math.isnan(run.value("peak_bytes"))


def test_what_is_not_there_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="give a run's directory"):
        Run.read(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        read.find([tmp_path / "nothing"])


def test_find_looks_below_and_takes_each_run_once(tmp_path):
    root = write_runs(tmp_path / "runs")
    (root / "digits-permuted-sgd-0" / "checkpoint").mkdir()
    (root / "digits-permuted-sgd-0" / "checkpoint" / "config.toml").write_text("")
    hidden = root / ".trash"
    hidden.mkdir()
    (hidden / "config.toml").write_text("")
    runs = read.find([root, root / "digits-permuted-drcl-1", root / "digits-permuted-ewc-0" / "config.toml"])
    assert [(run.method, run.seed) for run in runs] == [
        ("drcl", 0),
        ("drcl", 1),
        ("ewc", 0),
        ("ewc", 1),
        ("sgd", 0),
        ("sgd", 1),
    ]


def test_a_run_without_config_is_found_and_called_unreadable(tmp_path):
    path = write_run(tmp_path, R=R)
    (path / "config.toml").unlink()
    (run,) = read.find([tmp_path])
    assert run.status == "unreadable"
    assert "it is not known what was run" in run.problems[0]


def test_an_empty_config_is_told(tmp_path):
    path = write_run(tmp_path, done=1)
    (path / "config.toml").write_text("")
    run = Run.read(path)
    assert "config.toml does not say which method was run" in run.problems
    assert run.status == "unreadable"
    assert verify(run).state == "damaged"


def test_one_run_that_breaks_the_reader_is_listed_and_the_others_are_read(tmp_path, monkeypatch):
    write_runs(tmp_path, ("sgd",))
    original = Run.read.__func__

    def fails(cls, path):
        if path.name.endswith("1"):
            raise ZeroDivisionError("\x1b[31mred")
        return original(cls, path)

    monkeypatch.setattr(Run, "read", classmethod(fails))
    broken, good = sorted(read.find([tmp_path]), key=lambda run: run.readable)
    assert good.finished
    assert broken.status == "unreadable"
    assert broken.problems == ("cannot be read (\\x1b[31mred)",)
