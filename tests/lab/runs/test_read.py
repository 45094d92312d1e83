"""A run's directory is read as it is: whole, unfinished, cut by a kill, damaged or contradicting itself."""

import json
import math

import numpy as np
import pytest
import tomli_w
from tests.lab.report.fake_runs import write_matrix, write_run, write_runs

from drcl.lab.report.groups import group
from drcl.lab.runs import read
from drcl.lab.runs.read import Run

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
    assert run.status == "its accuracy matrix is incomplete"


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


def test_groups_hold_the_seeds_of_one_method(tmp_path):
    groups = group(read.find([write_runs(tmp_path)]))
    assert [(g.benchmark, g.label, len(g.finished)) for g in groups] == [
        ("digits-permuted", "drcl", 2),
        ("digits-permuted", "ewc", 2),
        ("digits-permuted", "sgd", 2),
    ]
    mean = (groups[0].runs[0].matrix + groups[0].runs[1].matrix) / 2
    np.testing.assert_allclose(groups[0].matrix(), mean)


def test_other_options_are_another_group_and_only_they_are_named(tmp_path):
    for strength in (1.0, 10.0):
        for seed in range(2):
            write_run(tmp_path, "drcl", seed, R=R, options={"strength": strength}, name=f"{strength}-{seed}")
    write_run(tmp_path, "sgd", 0, R=R, training={"epochs": 5})
    labels = [g.label for g in group(read.find([tmp_path]))]
    assert labels == ["drcl (strength=1.0)", "drcl (strength=10.0)", "sgd"]


def test_another_number_of_tasks_is_another_benchmark(tmp_path):
    write_run(tmp_path, "sgd", 0, tasks=4, name="a")
    write_run(tmp_path, "sgd", 0, tasks=8, name="b")
    assert [g.benchmark for g in group(read.find([tmp_path]))] == [
        "digits-permuted (tasks=4)",
        "digits-permuted (tasks=8)",
    ]


def test_a_seed_counts_once(tmp_path):
    write_run(tmp_path, "sgd", 0, R=R, name="first")
    write_run(tmp_path, "sgd", 0, R=R, name="second")
    write_run(tmp_path, "sgd", 1, R=R, done=1, name="third")
    (g,) = group(read.find([tmp_path]))
    assert [run.path.name for run in g.finished] == ["first"]
    assert [(run.path.name, why) for run, why in g.left_out] == [("second", "repeats seed 0")]
    assert [run.path.name for run in g.unfinished] == ["third"]


def test_a_run_over_other_tasks_does_not_count(tmp_path):
    write_run(tmp_path, "sgd", 0, R=R, name="first")
    path = write_run(tmp_path, "sgd", 1, tasks=3, name="second")
    config = (path / "config.toml").read_text().replace("tasks = 3", "tasks = 2")  # it says what it is not
    (path / "config.toml").write_text(config)
    (g,) = group(read.find([tmp_path]))
    assert [(run.path.name, why) for run, why in g.left_out] == [("second", "has 3 tasks instead of 2")]
    np.testing.assert_array_equal(g.matrix(), R)


def test_options_of_any_kind_can_be_compared(tmp_path):
    for name, value in (("a", {"inner": [1, 2]}), ("b", {"inner": [1, 3]})):
        path = write_run(tmp_path, "m", 0, R=R, name=name)
        config = {"benchmark": "x", "method": "m", "seed": 0, "method_options": value}
        (path / "config.toml").write_text(tomli_w.dumps(config))
    assert [g.label for g in group(read.find([tmp_path]))] == ["m (inner=[1, 2])", "m (inner=[1, 3])"]
