"""Presets: settings under one name, and what may be given beside it."""

import inspect

import pytest
import torch

from drcl import DRCL, Fisher
from drcl.options import PRESETS
from drcl.prox import L1, L2

from .tasks import closure_on, mlp, same, task, weights

# Written out once more, from the paper.
PAPER = dict(lr=5e-3, momentum=0.0, strength=10.0, prox="l1", splitting="douglas-rachford", iterations=5)
PAPER |= dict(memory="latest", normalise="global")


def trained(**arguments):
    model = mlp()
    opt = DRCL(model.named_parameters(), **arguments)
    for number in range(3):
        for batch in task(number):
            opt.step(closure_on(model, opt, batch))
        opt.consolidate(model, task(number), Fisher(labels="exact"))
    return weights(model), opt


def test_it_stands_for_the_settings_of_the_paper():
    model, opt = trained(preset="paper")
    spelt, other = trained(**PAPER)
    assert same(model, spelt)
    assert opt.solver == other.solver
    assert opt.solver.prox == L1()
    assert opt.param_groups[0]["lr"] == 5e-3
    assert {k: v for k, v in opt.param_groups[0].items() if k != "params"} == {
        k: v for k, v in other.param_groups[0].items() if k != "params"
    }


def test_every_setting_is_an_option_and_lr_may_be_given():
    assert set(PRESETS["paper"]) <= set(inspect.signature(DRCL).parameters)
    p = list(mlp().named_parameters())
    assert DRCL(p, lr=0.3, preset="paper").param_groups[0]["lr"] == 0.3
    assert DRCL(p, weight_decay=0.1, tolerance=0.01, preset="paper").solver.tolerance == 0.01
    assert DRCL([{"params": p, "lr": 0.2}], preset="paper").param_groups[0]["lr"] == 0.2


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("momentum", 0.9), ("strength", 3.0), ("stable", 0.8), ("prox", "l2"), ("prox", L2()), ("damping", 0.1)),
        *(("splitting", "forward-backward"), ("iterations", 2), ("plasticity_steps", 4), ("memory", 0.5)),
        *(("normalise", "tensor"), ("memory", "sum"), ("iterations", 1)),  # a default is a value too where it is given
    ],
)
def test_another_value_is_refused_by_name(name, value):
    p = list(mlp().named_parameters())
    with pytest.raises(ValueError, match=f"^{name}=.* beside preset='paper', which stands for {name}=.*leave one"):
        DRCL(p, preset="paper", **{name: value})
    assert DRCL(p, preset="paper", **{name: PRESETS["paper"][name]}).solver.iterations == 5


def test_it_goes_on_from_a_saved_state():
    model = mlp()
    opt = DRCL(model.named_parameters(), preset="paper")
    opt.consolidate(model, task(0))
    again = DRCL(model.named_parameters(), preset="paper")
    again.load_state_dict(opt.state_dict())
    assert same(again.state_dict(), opt.state_dict())
    with pytest.raises(ValueError, match=r"iterations=5 evaluates the loss several times: call opt\.step\(closure\)"):
        again.step()
    assert torch.isfinite(again.step(closure_on(model, again, task(1)[0])))
    assert again.iterations_used == 5
