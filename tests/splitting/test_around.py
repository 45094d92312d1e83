"""DRCL.around: any torch optimizer makes the proposal."""

import copy
import math

import pytest
import torch
from tests.tasks import closure_on, fit, mlp, same, task, weights
from torch import nn
from torch.nn.functional import cross_entropy

import drcl
from drcl import DRCL

OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
    "LBFGS": lambda p: torch.optim.LBFGS(p, lr=0.5, max_iter=4, line_search_fn="strong_wolfe"),
}
every = pytest.mark.parametrize("name", OPTIMIZERS)


def run(model, opt, batches):
    for batch in batches:
        opt.step(closure_on(model, opt, batch))


@every
def test_before_consolidation_it_is_the_wrapped_optimizer_bit_for_bit(name):
    one, two = mlp(), mlp()
    plain = OPTIMIZERS[name](two.parameters())
    opt = DRCL.around(OPTIMIZERS[name](one.named_parameters()), strength=3.0, splitting="douglas-rachford")
    run(one, opt, task(0)), run(two, plain, task(0))
    assert same(weights(one), weights(two))


def _gamma(name, plain, g, moved):
    """How far the first step of an optimizer moves per unit of a constant gradient."""
    group = plain.param_groups[0]
    if name == "SGD":
        return group["lr"] / (1 - group["momentum"])
    if name in ("Adam", "AdamW"):
        return group["lr"] / (g.abs() + group["eps"])
    if name == "LBFGS":
        return group["lr"]
    return moved.norm() / g.norm()


@every
@pytest.mark.parametrize("splitting", ["douglas-rachford", "forward-backward"])
def test_after_consolidation_the_proposal_is_negotiated(name, splitting):
    """One step from the anchor: x by the wrapped optimizer alone, then z by hand in numpy's way."""
    model, twin = mlp(), mlp()
    opt = DRCL.around(OPTIMIZERS[name](model.named_parameters()), strength=0.3, splitting=splitting)
    opt.consolidate(model, task(0))
    a = weights(model)
    run(model, opt, task(1)[:1])
    plain = OPTIMIZERS[name](twin.parameters())
    run(twin, plain, task(1)[:1])
    gradients = [p.grad.double() for p in twin.parameters()]
    opt.eval()
    importance = opt.anchor.importance.values()
    for z, x, start, f, g in zip(weights(model), weights(twin), a, importance, gradients):
        reach = 2 if splitting == "douglas-rachford" else 1
        r = start.double() + reach * (x.double() - start.double())
        d, tau = r - start.double(), _gamma(name, plain, g, x.double() - start.double()) * 0.3 * f.double()
        expected = start.double() + d.sign() * (d.abs() - tau).clamp(min=0)
        torch.testing.assert_close(z.double(), expected, rtol=0, atol=1e-6)


@every
def test_infinite_strength_holds_everything(name):
    model = mlp()
    opt = DRCL.around(OPTIMIZERS[name](model.parameters()), strength=math.inf, splitting="douglas-rachford")
    opt.consolidate(model, task(0))
    before = weights(model)
    run(model, opt, task(1))
    with opt.deployed():
        assert same(before, weights(model))


@pytest.mark.parametrize("on", ["ours", "theirs"])
def test_a_scheduler_on_either_of_the_two(on):
    def train(scheduled):
        model = mlp()
        inner = torch.optim.AdamW(model.named_parameters(), lr=0.02)
        opt = DRCL.around(inner, strength=0.1, splitting="douglas-rachford")
        scheduler = scheduled(opt, inner)
        for number in range(2):
            for k, batch in enumerate(task(number)):
                if scheduler is None:
                    inner.param_groups[0]["lr"] = 0.02 * 0.5 ** (number * 5 + k)
                fit(model, opt, [batch])
                if scheduler is not None:
                    scheduler.step()
            opt.consolidate(model, task(number))
        return weights(model)

    def halve(opt, inner):
        return torch.optim.lr_scheduler.ExponentialLR(opt if on == "ours" else inner, 0.5)

    for p, q in zip(train(halve), train(lambda *_: None)):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-7)


def test_free_groups_follow_the_wrapped_optimizer():
    torch.manual_seed(0)
    body, head = nn.Linear(6, 6), nn.Linear(6, 3)
    twin = copy.deepcopy(head)
    groups = [{"params": list(body.parameters())}, {"params": list(head.parameters()), "free": True}]
    opt = DRCL.around(torch.optim.AdamW(groups, lr=0.01), strength=math.inf, splitting="douglas-rachford")
    plain = torch.optim.AdamW(twin.parameters(), lr=0.01)
    opt.consolidate(nn.Sequential(body, head), task(0))
    for x, y in task(1):
        for layer, o in ((head, opt), (twin, plain)):
            o.zero_grad()
            cross_entropy(layer(x), y).backward()
            o.step()
    assert same(weights(head), weights(twin))
    assert set(opt.anchor.weights) == {"0.weight", "0.bias"}


@pytest.mark.parametrize("on", ["ours", "theirs"])
def test_groups_added_to_either_of_the_two(on):
    model, head = mlp(), nn.Linear(6, 3)
    inner = torch.optim.AdamW(model.named_parameters(), lr=0.01)
    opt = DRCL.around(inner, strength=2.0, splitting="douglas-rachford")
    opt.consolidate(model, task(0))
    (opt if on == "ours" else inner).add_param_group({"params": list(head.named_parameters()), "lr": 0.5})
    opt.zero_grad()
    head(task(1)[0][0]).sum().backward()
    before = weights(head)
    opt.step()
    assert not same(before, weights(head))
    assert [g["lr"] for g in opt.param_groups] == [0.01, 0.5]
    assert opt.strengths == [2.0, 2.0]


def test_a_frozen_start_for_each_task():
    """Moments of the last task would move weights without a gradient of the new one, so they are dropped."""
    model = mlp()
    opt = DRCL.around(torch.optim.AdamW(model.named_parameters(), lr=0.01), strength=1.0, splitting="douglas-rachford")
    fit(model, opt, task(0))
    opt.consolidate(model, task(0))
    assert not opt.inner.state


@every
def test_share_of_stable_weights_and_drift(name):
    model = mlp()
    opt = DRCL.around(OPTIMIZERS[name](model.named_parameters()), strength=0.1, splitting="forward-backward")
    opt.consolidate(model, task(0))
    anchor = opt.anchor
    run(model, opt, task(1))
    assert 0 < drcl.drift(model, anchor).total.unmoved < 1


def test_plasticity_steps_with_adam():
    """Four Adam steps from y, then one negotiation, each weight with the sum of four rates over its sqrt(v)."""
    model, twin = mlp(), mlp()
    opt = DRCL.around(
        torch.optim.Adam(model.named_parameters(), lr=0.01),
        strength=0.2,
        splitting="forward-backward",
        plasticity_steps=4,
    )
    opt.consolidate(model, task(0))
    a = weights(model)
    adam = torch.optim.Adam(twin.parameters(), lr=0.01)
    fit(model, opt, task(1)[:4]), fit(twin, adam, task(1)[:4])
    second = [adam.state[p]["exp_avg_sq"].double() / (1 - 0.999**4) for p in twin.parameters()]
    for z, x, start, f, v in zip(weights(model), weights(twin), a, opt.anchor.importance.values(), second):
        d = (x - start).double()
        gamma = 0.04 / (v.sqrt() + 1e-8)
        expected = start.double() + d.sign() * (d.abs() - gamma * 0.2 * f.double()).clamp(min=0)
        torch.testing.assert_close(z.double(), expected, rtol=0, atol=1e-6)
