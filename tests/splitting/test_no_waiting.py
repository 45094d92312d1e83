"""A step asks no device for a number: on an accelerator that would stop the program until all work before it is done.

Tensors on the meta device have no values, so every ``float(tensor)``, ``.item()``, ``.cpu()`` and ``if tensor`` fails
there. A second way to see the same, with values: the operators behind these are forbidden while a step runs.
"""

import pytest
import torch
from tests.tasks import after_one_task, mlp, task
from torch.utils._python_dispatch import TorchDispatchMode

from drcl import DRCL, Fisher, Kronecker
from drcl.splitting import kernels, step_size

aten = torch.ops.aten


class Waits(TorchDispatchMode):
    """Refuses to read a number from a device; `counted` says how often that was tried."""

    def __init__(self, forbid=True):
        super().__init__()
        self.forbid, self.counted = forbid, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        reads = function in (aten._local_scalar_dense.default, aten.nonzero.default, aten.equal.default)
        if reads or (function is aten._to_copy.default and "device" in (kwargs or {})):
            self.counted += 1
            assert not self.forbid, f"{function} in a step"
        return function(*args, **(kwargs or {}))


def rmsprop(model):
    return torch.optim.RMSprop(model.parameters(), lr=0.01)


def adam(model):
    return torch.optim.Adam(model.parameters(), lr=0.01)


OFF = {"check_finite": False, "backend": "foreach"}
WEIGHTS = {"preset": "weights", **OFF}
WAYS = {
    "weights": lambda m: DRCL(m.named_parameters(), lr=0.1, momentum=0.9, **WEIGHTS),
    "nesterov": lambda m: DRCL(
        m.named_parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1, maximize=True, **WEIGHTS
    ),
    "reflection": lambda m: DRCL(m.named_parameters(), lr=0.1, splitting="douglas-rachford", prox="l2", **WEIGHTS),
    "elastic": lambda m: DRCL(m.named_parameters(), lr=0.1, prox="elastic", **WEIGHTS),
    "group": lambda m: DRCL(m.named_parameters(), lr=0.1, prox="group", **WEIGHTS),
    "box": lambda m: DRCL(m.named_parameters(), lr=0.1, prox="box", **WEIGHTS),
    "frozen": lambda m: DRCL(m.named_parameters(), lr=0.1, strength=float("inf"), **WEIGHTS),
    "several steps": lambda m: DRCL(m.named_parameters(), lr=0.1, plasticity_steps=2, **WEIGHTS),
    "around Adam": lambda m: DRCL.around(adam(m), **WEIGHTS),
    "around RMSprop": lambda m: DRCL.around(rmsprop(m), **WEIGHTS),
}
ALONG = {
    "directions": lambda m: DRCL(m.named_parameters(), lr=0.1, preset="directions", plasticity_steps=2, **OFF),
    "l1": lambda m: DRCL(m.named_parameters(), lr=0.1, prox="l1", splitting="douglas-rachford", **OFF),
    "around Adam": lambda m: DRCL.around(adam(m), preset="directions", plasticity_steps=2, **OFF),
    "around RMSprop": lambda m: DRCL.around(rmsprop(m), preset="directions", **OFF),
}


def on_meta(make, importance):
    """An optimizer with one task behind it, whose tensors are all on the meta device."""
    model = mlp()
    opt = make(model)
    opt.consolidate(model, task(0), importance)
    saved = opt.state_dict()
    empty = mlp().to("meta")
    again = make(empty)
    with pytest.MonkeyPatch.context() as patched:  # what is loaded is looked at, which needs values
        patched.setattr(torch, "isfinite", lambda t: torch.ones(()))
        patched.setattr(torch.Tensor, "__lt__", lambda t, other: torch.zeros(()))
        again.load_state_dict(saved)
    return empty, again


def steps(model, opt, count=3):
    for _ in range(count):
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        opt.step()


@pytest.mark.parametrize("make", WAYS.values(), ids=WAYS)
def test_weight_by_weight(make):
    model, opt = on_meta(make, Fisher())
    steps(model, opt)
    assert all(t.is_meta for state in opt.state.values() for t in state.values())


@pytest.mark.parametrize("rank", [None, 2])
@pytest.mark.parametrize("make", ALONG.values(), ids=ALONG)
def test_along_directions(make, rank):
    model, opt = on_meta(make, Kronecker(rank=rank))
    assert opt.progress.layers
    steps(model, opt)


def test_adam_may_count_its_steps_on_the_device():
    """As it does when it runs fused or is captured in a graph."""
    model, opt = on_meta(WAYS["around Adam"], Fisher())
    steps(model, opt)
    for state in opt.inner.state.values():
        state["step"] = state["step"].to("meta")
    assert all(step_size._metric(opt, p).is_meta for p in model.parameters())


@pytest.mark.parametrize("way", ["weights", "reflection", "several steps", "around RMSprop"])
def test_nothing_is_read_where_there_are_values(way):
    model = mlp()
    opt = WAYS[way](model)
    opt.consolidate(model, task(0))
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    with Waits():
        opt.step()
        opt.step()


def test_the_check_for_finite_gradients_reads_once():
    model, _ = after_one_task()
    gradients = [torch.ones_like(p) for p in model.parameters()]
    with Waits(forbid=False) as seen:
        assert kernels.first_non_finite(gradients, "foreach") == -1
    assert seen.counted <= 1
    gradients[2][0] = float("inf")
    gradients.insert(0, torch.empty(0))
    assert kernels.first_non_finite(gradients, "foreach") == 3
