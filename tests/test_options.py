"""Presets: settings under one name, and what may be given beside it."""

import copy
import inspect
from typing import get_args

import pytest
import torch
from tests.tasks import closure_on, fit, mlp, same, task, weights

from drcl import DRCL, Fisher, Kronecker
from drcl.options import HELP, KINDS, PRESETS
from drcl.prox import L1, L2, ElasticNet

# Written out once more, from the paper.
PAPER = dict(lr=5e-3, momentum=0.0, strength=10.0, prox="l1", splitting="douglas-rachford", iterations=5)
PAPER |= dict(memory="latest", normalise="global", norms="shared")


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
        *(("normalise", "share"), ("memory", "sum"), ("iterations", 1)),  # a default that is given counts as a value
    ],
)
def test_another_value_is_refused_by_name(name, value):
    p = list(mlp().named_parameters())
    with pytest.raises(ValueError, match=f"^{name}=.* contradicts preset='paper', which sets {name}=.*leave out one"):
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


# -- directions ------------------------------------------------------------------------------------------------------


DIRECTIONS = dict(splitting="forward-backward", prox="l2", strength=0.003, plasticity_steps=10, normalise="share")
MAKERS = {
    "sgd": lambda p, **options: DRCL(p, lr=0.05, momentum=0.9, **options),
    "adam": lambda p, **options: DRCL.around(torch.optim.Adam(p, lr=0.01), **options),
}


@pytest.mark.parametrize("name", MAKERS)
def test_directions_stand_for_these_settings_and_for_kronecker(name):
    make, settings = MAKERS[name], DIRECTIONS
    models, opts = (mlp(), mlp()), []
    for model, options, importance in zip(models, ({"preset": "directions"}, settings), (None, Kronecker())):
        opts.append(make(model.named_parameters(), **options))
        for number in range(2):
            fit(model, opts[-1], task(number), epochs=3)
            opts[-1].consolidate(model, task(number), importance)
    assert same(weights(models[0]), weights(models[1]))
    assert same(opts[0].state_dict(), opts[1].state_dict())
    assert [m["estimator"] for m in opts[0].anchor.provenance["made"]] == ["Kronecker", "Kronecker"]
    assert len(opts[0].anchor.bases) == 2
    opts[0].consolidate(models[0], task(1), Fisher())  # what is given wins
    assert not opts[0].anchor.bases


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        # defaults of DRCL too, where they are given
        *(("strength", 2.0, 2.0), ("strength", 0.1, 0.1), ("plasticity_steps", 4, 4), ("plasticity_steps", 1, 1)),
        *(("prox", "elastic", ElasticNet()), ("prox", "l1", L1()), ("damping", 0.1, 0.1), ("memory", 0.5, 0.5)),
        *(("splitting", "douglas-rachford", "douglas-rachford"), ("normalise", "global", "global")),
    ],
)
def test_what_is_given_beside_directions_wins(maker, name, value, found):
    opt = MAKERS[maker](list(mlp().named_parameters()), preset="directions", **{name: value})
    settings = {**vars(opt.solver), **opt.param_groups[0]}
    wanted = {**DIRECTIONS, "prox": L2(), name: found}
    assert {key: settings[key] for key in wanted} == wanted


def test_the_strength_is_the_same_whoever_proposes():
    p = list(mlp().named_parameters())
    for make in (torch.optim.AdamW, torch.optim.NAdam, torch.optim.SGD):
        assert DRCL.around(make(p, lr=0.01), preset="directions").strengths == [0.003]
    assert DRCL.around(torch.optim.AdamW(p), preset="weights").strengths == [0.001]


def test_a_share_of_directions_to_hold_takes_l1():
    p = list(mlp().named_parameters())
    assert DRCL(p, stable=0.8, preset="directions").solver.prox == L1()
    assert DRCL(p, stable=0.8, prox="elastic", preset="directions").solver.prox == ElasticNet()
    assert DRCL(p, stable=None, preset="directions").solver.prox == L2()
    with pytest.raises(ValueError, match="stable= needs a prox that leaves weights exactly in place"):
        DRCL(p, stable=0.8, prox="l2", preset="directions")


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_directions_survive_being_copied_and_resumed(make):
    model = mlp()
    opt = make(model.named_parameters(), preset="directions")
    opt.consolidate(model, task(0))
    fit(model, opt, task(1)[:4])
    twin, copied = copy.deepcopy((model, opt))
    other = mlp(seed=9)
    other.load_state_dict(model.state_dict())
    again = make(other.named_parameters(), preset="directions")
    again.load_state_dict(opt.state_dict())
    for m, o in ((model, opt), (twin, copied), (other, again)):
        fit(m, o, task(1))
        o.consolidate(m, task(1))
    for m, o in ((twin, copied), (other, again)):
        assert len(o.anchor.bases) == 2
        assert same(weights(model), weights(m))
        assert same(opt.state_dict(), o.state_dict())


# ---- what command lines are made from


def test_every_option_that_is_described_exists_and_has_a_default_of_its_kind():
    own, more = inspect.signature(DRCL).parameters, inspect.signature(Kronecker).parameters
    assert KINDS.keys() <= own.keys()
    assert HELP.keys() <= own.keys() | more.keys()
    assert KINDS.keys() <= HELP.keys()
    for name, kind in KINDS.items():
        default = own[name].default
        choices = [choice for part in (kind, *get_args(kind)) for choice in (get_args(part) or [part])]
        assert default in choices or type(default) in choices, name


@pytest.mark.parametrize("name", ["prox", "splitting", "normalise", "memory", "backend"])
def test_every_choice_that_is_named_is_taken_and_no_other(name):
    p = list(mlp().named_parameters())
    kind = KINDS[name]
    for choice in get_args(get_args(kind)[0] if name == "memory" else kind):
        DRCL(p, **{name: choice})
    with pytest.raises(ValueError, match=f"{name}='none of them'"):
        DRCL(p, **{name: "none of them"})
