"""Saving in the middle of a task and going on, bit for bit, by three ways of storing; and what is refused."""

import copy
import io
import json
import math
import re

import pytest
import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from tests.tasks import after_one_task, closure_on, fit, mlp, same, task, weights

import drcl
from drcl import DRCL, Fisher


def through_torch(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def through_safetensors(value):
    """Tensors to one file, everything else to JSON."""
    tensors = {}

    def take(v):
        if isinstance(v, torch.Tensor):
            tensors[str(len(tensors))] = v.contiguous().clone()
            return {"tensor": str(len(tensors) - 1)}
        if isinstance(v, dict):
            return {"dict": [[k, take(x)] for k, x in v.items()]}
        if isinstance(v, list | tuple):
            return {"list": [take(x) for x in v]}
        return {"value": v}

    text = json.dumps(take(value))
    tensors = load_tensors(save_tensors(tensors))

    def give(v):
        ((kind, x),) = v.items()
        if kind == "dict":
            return {k: give(y) for k, y in x}
        return tensors[x] if kind == "tensor" else [give(y) for y in x] if kind == "list" else x

    return give(json.loads(text))


WAYS = {"memory": copy.deepcopy, "torch": through_torch, "safetensors": through_safetensors}
KINDS = {
    "sgd": lambda p: DRCL(p, lr=0.1, momentum=0.9, strength=0.05, splitting="douglas-rachford"),
    "forward-backward": lambda p: DRCL(p, lr=0.1, momentum=0.9, strength=0.05, splitting="forward-backward"),
    "implicit": lambda p: DRCL(p, lr=0.1, strength=0.05, splitting="implicit", inner_steps=3),
    "iterations": lambda p: DRCL(
        p, lr=0.1, strength=float("inf"), splitting="douglas-rachford", iterations=3, tolerance=0.1
    ),
    "proposal": lambda p: DRCL(
        p, lr=0.1, momentum=0.9, strength=0.05, splitting="douglas-rachford", plasticity_steps=3
    ),
    "proposal, forward-backward": lambda p: DRCL(
        p, lr=0.1, momentum=0.9, strength=0.05, plasticity_steps=3, splitting="forward-backward"
    ),
    # four steps are made before it is saved, nine before the task ends
    "proposal, open at the end": lambda p: DRCL(p, lr=0.1, momentum=0.9, strength=0.05, plasticity_steps=7),
    "directions": lambda p: DRCL(p, lr=0.1, momentum=0.9, preset="directions"),
    "stable": lambda p: DRCL(p, lr=0.1, stable=0.7, splitting="douglas-rachford"),
    "share": lambda p: DRCL(p, lr=0.1, strength=1e-6, splitting="douglas-rachford", normalise="share"),
    "global": lambda p: DRCL(p, lr=0.1, strength=0.05, splitting="douglas-rachford", normalise="global"),
    "around, share": lambda p: DRCL.around(
        torch.optim.Adam(p, lr=0.01), strength=1e-6, splitting="douglas-rachford", normalise="share"
    ),
    "around": lambda p: DRCL.around(torch.optim.AdamW(p, lr=0.01), strength=0.05, splitting="douglas-rachford"),
    "around, proposal": lambda p: DRCL.around(
        torch.optim.Adam(p, lr=0.01), strength=0.05, splitting="douglas-rachford", plasticity_steps=3
    ),
    "lbfgs": lambda p: DRCL.around(
        torch.optim.LBFGS(p, lr=0.5, max_iter=3), strength=0.05, splitting="douglas-rachford"
    ),
}


def run(model, opt, batches):
    for batch in batches:
        opt.step(closure_on(model, opt, batch))


def half_way(kind):
    model = mlp()
    opt = KINDS[kind](model.named_parameters())
    run(model, opt, task(0))
    opt.consolidate(model, task(0), Fisher(samples=20))
    run(model, opt, task(1)[:4])
    return model, opt


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_going_on_is_bit_exact(kind, way, mode):
    model, opt = half_way(kind)
    if mode == "eval":
        opt.eval()
    saved = WAYS[way]({"model": model.state_dict(), "opt": opt.state_dict()})
    other = mlp(seed=9)
    again = KINDS[kind](other.named_parameters())
    other.load_state_dict(saved["model"])
    again.load_state_dict(saved["opt"])
    assert same(opt.state_dict(), again.state_dict()) or way == "safetensors"  # which makes lists of tuples
    for m, o in ((model, opt), (other, again)):
        o.train()
        run(m, o, task(1))
        o.consolidate(m, task(1), Fisher(samples=20))
        run(m, o, task(2)[:2])
    assert same(weights(model), weights(other))
    assert same(opt.anchor.importance, again.anchor.importance)
    assert opt.anchor.provenance == again.anchor.provenance
    with opt.deployed(), again.deployed():
        assert same(weights(model), weights(other))


def test_a_loaded_state_shares_nothing_with_the_one_it_came_from():
    model, opt = half_way("sgd")
    other = mlp()
    other.load_state_dict(model.state_dict())
    again = KINDS["sgd"](other.named_parameters())
    again.load_state_dict(opt.state_dict())
    kept = copy.deepcopy(opt.state_dict())
    run(other, again, task(2))
    again.consolidate(other, task(2))
    assert same(kept, opt.state_dict())


def test_names_and_16_bit_importance_survive():
    model = mlp().bfloat16()
    batches = [(x.bfloat16(), y) for x, y in task(0)]
    opt = DRCL(model.parameters(), lr=0.1, splitting="douglas-rachford")
    opt.consolidate(model, batches)
    saved = through_torch(opt.state_dict())
    again = DRCL(model.parameters(), lr=0.1, splitting="douglas-rachford")
    again.load_state_dict(saved)
    assert list(again.anchor.weights) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert same(again.anchor.importance, opt.anchor.importance)
    assert again.anchor.importance["0.weight"].dtype == torch.float32


def test_a_state_without_names_gives_no_anchor_to_save():
    model = mlp()
    opt = DRCL(model.parameters(), lr=0.1)
    opt.consolidate(model, task(0))
    saved = opt.state_dict()
    saved["drcl"]["names"] = [None] * 4
    nameless, named = DRCL(model.parameters(), lr=0.1), DRCL(model.named_parameters(), lr=0.1)
    nameless.load_state_dict(saved), named.load_state_dict(saved)
    with pytest.raises(ValueError, match=r"group 0, parameter 0 has no name.*model\.named_parameters\(\)"):
        _ = nameless.anchor
    assert list(named.anchor.weights) == ["0.weight", "0.bias", "2.weight", "2.bias"]


def test_the_layout_the_fused_step_needs_is_kept():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.Linear(64, 3))
    model = model.to(memory_format=torch.channels_last)
    data = [(torch.randn(4, 3, 6, 6), torch.randint(3, (4,)))]
    opt = DRCL(model.named_parameters(), lr=0.1, splitting="douglas-rachford")
    opt.consolidate(model, data)
    again = DRCL(model.named_parameters(), lr=0.1, splitting="douglas-rachford")
    again.load_state_dict(through_safetensors(opt.state_dict()))
    third = DRCL(model.named_parameters(), lr=0.1, splitting="douglas-rachford")
    third.protect(model, drcl.Anchor({k: v.contiguous() for k, v in opt.anchor.weights.items()}, opt.anchor.importance))
    for o in (opt, again, third):
        for p in model.parameters():
            assert {t.stride() for t in o.state[p].values()} == {p.stride()}


def refuses(opt, state, pattern):
    before = copy.deepcopy(opt.state_dict())
    with pytest.raises(ValueError, match=pattern):
        opt.load_state_dict(state)
    assert same(before, opt.state_dict())


def test_states_that_do_not_belong_here_are_refused_whole():
    model, opt = half_way("sgd")
    state = opt.state_dict()
    refuses(half_way("sgd")[1], torch.optim.SGD(model.parameters(), lr=0.1).state_dict(), "was not made by DRCL")
    refuses(half_way("around")[1], state, r"DRCL\.around")
    refuses(opt, half_way("around")[1].state_dict(), r"DRCL\.around")
    refuses(half_way("forward-backward")[1], state, "saved with splitting='douglas-rachford'")
    refuses(half_way("share")[1], state, "saved with normalise='task'; make this optimizer with the same")
    wider = mlp(sizes=(6, 17, 3))
    fresh = DRCL(wider.named_parameters(), lr=0.1, splitting="douglas-rachford")
    refuses(fresh, state, re.escape("'0.weight' has shape (17, 6)") + ".*" + re.escape("(16, 6)"))
    deeper = mlp(sizes=(6, 16, 16, 3))
    refuses(
        DRCL(deeper.named_parameters(), lr=0.1, splitting="douglas-rachford"),
        state,
        r"\[4\] parameters, this optimizer's \[6\]",
    )
    more = DRCL([{"params": [p]} for p in model.parameters()], lr=0.1, splitting="douglas-rachford")
    refuses(more, state, r"\[4\] parameters, this optimizer's \[1, 1, 1, 1\]")


@pytest.mark.parametrize("key", ["normalise", "splitting", "mode", "tasks", "names", "gammas"])
def test_a_state_that_lacks_a_part_is_refused(key):
    model, opt = half_way("global")
    state = opt.state_dict()
    del state["drcl"][key]
    again = KINDS["global"](model.named_parameters())
    before = again.state_dict()
    with pytest.raises(ValueError, match=f"lacks {key}"):
        again.load_state_dict(state)
    assert same(before, again.state_dict())


def _set(path, value):
    def damage(state):
        *way, last = path
        for key in way:
            state = state[key]
        if value is DELETE:
            del state[last]
        elif callable(value):
            state[last] = value(state[last])
        else:
            state[last] = value

    return damage


DELETE = object()
FIRST = ("state", 0)
DAMAGE = {
    "no state": (_set(("state",), DELETE), "lacks state"),
    "no groups": (_set(("param_groups",), DELETE), "lacks param_groups"),
    "groups of nothing": (_set(("param_groups",), [None]), "cannot be read"),
    "no anchor": (_set((*FIRST, "anchor"), DELETE), "'0.weight': the saved state lacks anchor"),
    "no importance": (_set((*FIRST, "importance"), DELETE), "lacks importance"),
    "no z": (_set((*FIRST, "z"), DELETE), "lacks z"),
    "NaN anchor": (_set((*FIRST, "anchor"), lambda t: t * math.nan), "'anchor' holds NaN"),
    "NaN importance": (_set((*FIRST, "importance"), lambda t: t * math.nan), "'importance' holds NaN"),
    "NaN momentum": (_set((*FIRST, "momentum_buffer"), lambda t: t / 0), "'momentum_buffer' holds NaN"),
    "negative importance": (_set((*FIRST, "importance"), lambda t: -1 - t), "'importance' has negative values"),
    "no tensor": (_set((*FIRST, "anchor"), 3), "'anchor' is int, not a tensor"),
    "no entry": (_set(FIRST, 7), "cannot be read"),
    "mean NaN": (_set(("drcl", "importance_mean"), math.nan), "importance_mean=nan"),
    "mean -1": (_set(("drcl", "importance_mean"), -1.0), "importance_mean=-1.0"),
    "half a task": (_set(("drcl", "tasks"), 0.5), "tasks=0.5"),
    "another mode": (_set(("drcl", "mode"), "fly"), "mode='fly'"),
    "names": (_set(("drcl", "names"), ["a"]), "names="),
    "gammas": (_set(("drcl", "gammas"), [math.inf]), "gammas="),
    "made": (_set(("drcl", "made"), 3), "made=3"),
    "lr NaN": (_set(("param_groups", 0, "lr"), math.nan), "group 0 of the state dict: lr=nan"),
    "strength": (_set(("param_groups", 0, "strength"), -1.0), "group 0 of the state dict: strength=-1.0"),
    "no lr": (_set(("param_groups", 0, "lr"), DELETE), "group 0 of the state dict: 'lr'"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_state_changes_nothing(damage):
    _, opt = after_one_task(momentum=0.9, then=2)
    state = copy.deepcopy(opt.state_dict())
    change, pattern = DAMAGE[damage]
    change(state)
    before = copy.deepcopy(opt.state_dict())
    with pytest.raises(ValueError, match=pattern):
        opt.load_state_dict(state)
    assert same(before, opt.state_dict())


@pytest.mark.parametrize("bad", [None, {}, {"drcl": 3}, [], "state"])
def test_no_state_at_all(bad):
    _, opt = after_one_task()
    with pytest.raises(ValueError, match="not made by DRCL"):
        opt.load_state_dict(bad)


def test_a_wrapped_optimizer_that_refuses_its_part_leaves_all_as_it_was():
    model = mlp()
    opt = DRCL.around(torch.optim.Adam(model.named_parameters(), lr=0.01), strength=0.1)
    fit(model, opt, task(0))
    opt.consolidate(model, task(0))
    fit(model, opt, task(1))
    state = copy.deepcopy(opt.state_dict())
    before = copy.deepcopy(opt.state_dict())

    def refuse(*_):
        raise RuntimeError("not mine")

    opt.inner.register_load_state_dict_pre_hook(refuse)
    with pytest.raises(RuntimeError, match="not mine"):
        opt.load_state_dict(state)
    assert same(before, opt.state_dict())
    assert opt.param_groups is opt.inner.param_groups


def test_memory_does_not_grow_with_tasks():
    """anchor, importance and z: three floats per protected weight, two without reflection, whatever the task."""
    for splitting, floats in (("douglas-rachford", 3), ("forward-backward", 2), ("implicit", 3)):
        model = mlp()
        count = sum(p.numel() for p in model.parameters())
        opt = DRCL(model.named_parameters(), lr=0.01, strength=0.1, splitting=splitting, inner_steps=2)
        for number in range(4):
            run(model, opt, task(number)[:2])
            opt.consolidate(model, task(number), Fisher(samples=8))
            run(model, opt, task(number)[:1])
            held = [t for s in opt.state_dict()["state"].values() for t in s.values()]
            assert sum(t.numel() for t in held) == floats * count


@pytest.mark.parametrize("steps", [1, 2])
def test_a_group_added_after_a_step_of_a_wrapped_optimizer_is_no_damage(steps):
    """Between proposals and in the middle of one: there is a rate for each group."""
    model, extra = mlp(), torch.nn.Parameter(torch.zeros(3))
    opt = DRCL.around(torch.optim.SGD(model.named_parameters(), lr=0.1), plasticity_steps=2)
    fit(model, opt, task(0)[:steps])
    opt.add_param_group({"params": [("extra", extra)]})
    opt.load_state_dict(copy.deepcopy(opt.state_dict()))
    assert len(opt.progress.gammas) == 2
