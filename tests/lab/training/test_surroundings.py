"""Process-wide settings of torch: set for a run, given back as they were."""

from __future__ import annotations

import pytest
import torch
from tests.lab.training.toys import learner

from drcl.lab.training.settings import Training
from drcl.lab.training.surroundings import pick_device, surroundings


def test_the_callers_world_is_left_alone():
    torch.manual_seed(11)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    learner(threads=1, model={"dropout": 0.5}).run()
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads
    assert not torch.are_deterministic_algorithms_enabled()


def test_devices_that_are_not_there_are_refused():
    with pytest.raises(ValueError, match="device='gpu'"):
        learner(device="gpu")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="no CUDA device"):
            learner(device="cuda")
    learner(device="auto")


def test_settings_hold_inside_and_are_given_back_after_an_error():
    threads = torch.get_num_threads()
    state = torch.get_rng_state()

    def run() -> None:
        with surroundings(Training(threads=1, deterministic=True), torch.device("cpu")):
            assert torch.get_num_threads() == 1
            assert torch.are_deterministic_algorithms_enabled()
            assert torch.backends.cudnn.deterministic
            torch.manual_seed(5)
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        run()
    assert torch.get_num_threads() == threads
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.equal(torch.get_rng_state(), state)


def test_fast_algorithms_where_they_are_asked_for():
    with surroundings(Training(deterministic=False), torch.device("cpu")):
        assert not torch.are_deterministic_algorithms_enabled()


def test_auto_is_a_device_of_this_machine():
    assert pick_device("auto").type in ("cpu", "cuda", "mps")
    assert pick_device("cpu") == torch.device("cpu")
