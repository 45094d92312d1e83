"""Runs of one method over its seeds."""

import math

import numpy as np
import tomli_w
from tests.lab.report.fake_runs import write_run, write_runs

from drcl.lab.report.groups import group
from drcl.lab.runs import read

R = np.array([[0.9, math.nan], [0.7, 0.8]])


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
