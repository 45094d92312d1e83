"""The stopwatch of a run, with a clock that is moved by hand."""

from __future__ import annotations

import pytest
import torch

from drcl.lab.training import cost
from drcl.lab.training.cost import PHASES, Cost


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now, peak = 100.0, 0

    monkeypatch.setattr(cost.time, "perf_counter", lambda: Clock.now)
    monkeypatch.setattr(cost, "_peak", lambda device: Clock.peak)
    monkeypatch.setattr(cost, "_reset_peak", lambda device: setattr(Clock, "peak", 0))
    return Clock


def test_each_phase_has_its_own_seconds_and_what_is_between_counts_nowhere(clock):
    made = Cost(torch.device("cpu"))
    assert made.switch("training") is None
    clock.now += 3
    assert made.switch("evaluation") == "training"
    clock.now += 2
    assert made.switch(None) == "evaluation"
    clock.now += 50  # a checkpoint
    made.switch("consolidation")
    clock.now += 1
    assert made.total() == pytest.approx(6)  # the running phase too
    assert made.learning() == pytest.approx(4)  # without evaluation
    made.switch("training")
    clock.now += 10
    made.switch(None)
    assert made.seconds == pytest.approx({"training": 13, "consolidation": 1, "evaluation": 2})
    assert made.total() == pytest.approx(16)


def test_the_peak_of_a_phase_is_its_largest(clock):
    made = Cost(torch.device("cpu"))
    for phase, peak in (("training", 70), ("evaluation", 20), ("training", 50)):
        made.switch(phase)
        clock.peak = peak
    made.switch(None)
    assert made.peak_bytes == {"training": 70, "consolidation": 0, "evaluation": 20}


def test_it_goes_on_after_a_resume(clock):
    made = Cost(torch.device("cpu"))
    made.switch("training")
    clock.now += 5
    made.gradient_evaluations, made.state_bytes = 7, 9
    made.per_task_seconds.append(5.0)
    kept = made.state_dict()
    assert kept["seconds"]["training"] == pytest.approx(5)  # of the phase that is on as well
    clock.now += 1000
    again = Cost(torch.device("cpu"))
    again.load_state_dict(kept)
    again.switch("training")
    clock.now += 2
    again.switch(None)
    told = again.as_json(parameters=33)
    assert set(told) == {*PHASES, "gradient_evaluations", "state_bytes", "parameters", "per_task_seconds"}
    assert told["training"]["seconds"] == pytest.approx(7)
    assert (told["gradient_evaluations"], told["state_bytes"], told["parameters"]) == (7, 9, 33)
    assert told["per_task_seconds"] == [5.0]


def test_peak_memory_of_this_process_is_a_number_of_bytes():
    device = torch.device("cpu")
    cost._reset_peak(device)
    before = cost._peak(device)
    block = torch.ones(64 * 2**20, dtype=torch.uint8)
    assert cost._peak(device) >= before
    assert cost._peak(device) > block.numel() / 2
