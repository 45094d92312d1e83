"""Estimates are steps times a measured second."""

import json

import pytest

from drcl.lab.paper.contents import paper
from drcl.lab.paper.estimate import Speeds, estimated, hours, probe, steps, told, usual_file
from drcl.lab.paper.plan import plan
from drcl.lab.runs.config import RunConfig

PAPER = paper()


def test_steps_of_a_run():
    """4,500 images in batches of 64 are 70 steps; three epochs of ten tasks."""
    config = RunConfig.make("cifar100-10", "sgd", options={"epochs": 3})
    assert steps(PAPER, config) == 10 * 3 * 70
    assert steps(PAPER, RunConfig.make("cifar100-10", "sgd", options={"epochs": 3, "tasks": 2})) == 2 * 3 * 70
    assert steps(PAPER, RunConfig.make("cifar10-permuted", "sgd", options={"tasks": 60, "steps": 2500})) == 150_000
    limited = {"epochs": 1, "limit_per_class": 64}
    assert steps(PAPER, RunConfig.make("cifar100-10", "sgd", options=limited)) == 10 * 10


def test_hours_count_each_run_once():
    speeds = Speeds(None, lambda model, shape, batch: 0.5)
    found = plan(PAPER, ["heat", "heat"], "small", skip=False)
    # Three rows, 20 tasks x 3 epochs x 35 steps of half a second, at 1.0, 1.3 and 5.0 times SGD's cost.
    expected = (20 * 3 * 35 * 0.5 * (1.0 + 1.3 + 5.0) + 3 * 2.0) / 3600
    assert hours(PAPER, found.runs, speeds) == pytest.approx(expected)


def test_a_speed_is_measured_once_and_kept(tmp_path):
    asked = []

    def measure(model, shape, batch):
        asked.append((model["kind"], shape, batch))
        return 0.25

    file = tmp_path / "cache" / "speeds.json"
    speeds = Speeds(file, measure)
    model = {"kind": "mlp", "hidden": [8]}
    assert speeds.of(model, (1, 8, 8), 4) == speeds.of(model, (1, 8, 8), 4) == 0.25
    assert Speeds(file, measure).of(model, (1, 8, 8), 4) == 0.25
    assert asked == [("mlp", (1, 8, 8), 4)]
    file.write_text("damaged", encoding="utf-8")
    Speeds(file, measure).of(model, (1, 8, 8), 4)
    assert len(asked) == 2
    assert list(json.loads(file.read_text(encoding="utf-8")).values()) == [0.25]


def test_a_folder_that_cannot_be_written_is_no_obstacle(tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    speeds = Speeds(tmp_path / "file" / "speeds.json", lambda model, shape, batch: 1.0)
    assert speeds.of({"kind": "mlp"}, (1, 8, 8), 4) == 1.0


def test_a_probe_takes_some_time():
    assert 0 < probe({"kind": "mlp", "hidden": [8]}, (1, 8, 8), 4) < 10


def test_in_words():
    assert [told(value) for value in (0.001, 0.5, 2.345, 123.4)] == ["< 1 min", "30 min", "2.3 h", "123 h"]
    assert usual_file().name == "speeds.json"
    nothing = plan(PAPER, ["heat"], "small", skip=False, rows=["sgd"])
    assert estimated(PAPER, type(nothing)(()), Speeds(None, lambda *_: 1.0)) == "–"
