"""What fails in the middle leaves everything as it was."""

import copy

import pytest
import torch
from tests.tasks import after_one_task, fit, task, weights

from drcl.rollback import all_or_nothing, loading


class Stop(Exception):
    pass


def test_weights_state_groups_and_progress_are_put_back():
    model, opt = after_one_task(momentum=0.9, then=2)
    before, state, rate = weights(model), copy.deepcopy(opt.state_dict()), opt.param_groups[0]["lr"]

    def interrupted():
        with torch.no_grad(), all_or_nothing(opt):
            with torch.enable_grad():
                fit(model, opt, task(1))
            opt.param_groups[0]["lr"] = 7.0
            opt.progress.tasks = 9
            raise Stop

    with pytest.raises(Stop):
        interrupted()
    assert all(torch.equal(a, b) for a, b in zip(before, weights(model)))
    assert opt.param_groups[0]["lr"] == rate
    assert opt.tasks == 1
    again = opt.state_dict()
    assert again["drcl"] == state["drcl"]
    for index, entry in state["state"].items():
        assert all(torch.equal(t, again["state"][index][k]) for k, t in entry.items() if isinstance(t, torch.Tensor))


def test_a_load_that_fails_leaves_the_old_objects():
    _, opt = after_one_task()
    state, groups, progress = opt.state, opt.param_groups, opt.progress

    def interrupted():
        with loading(opt):
            opt.state, opt.param_groups, opt.progress = {}, [], None
            raise Stop

    with pytest.raises(Stop):
        interrupted()
    assert opt.state is state
    assert opt.param_groups is groups
    assert opt.progress is progress


def test_what_succeeds_stays():
    model, opt = after_one_task()
    before = weights(model)
    with all_or_nothing(opt):
        fit(model, opt, task(1))
    assert not all(torch.equal(a, b) for a, b in zip(before, weights(model)))
