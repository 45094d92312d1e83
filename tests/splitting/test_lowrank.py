"""The step of adapters: where it ends, what it does at the extremes, and that it can be interrupted."""

import copy

import pytest
import torch
from tests.directions.adapted import Adapted, adapted, products
from tests.tasks import closure_on, fit, task
from torch import nn

from drcl import DRCL, Fisher, Kronecker
from drcl.splitting import auto
from drcl.splitting.lowrank import factors

OPTIMIZERS = {
    "sgd": lambda p, **o: DRCL(p, lr=0.3, **o),
    "momentum": lambda p, **o: DRCL.around(torch.optim.SGD(p, lr=0.06, momentum=0.8), **o),
    "proposals": lambda p, **o: DRCL(p, lr=0.02, plasticity_steps=4, **o),
    "adam": lambda p, **o: DRCL.around(torch.optim.Adam(p, lr=0.01, betas=(0.5, 0.999)), **o),
}
DIRECTIONS = {"prox": "l2", "normalise": "task"}


def problem(kind, strength=0.3, estimator=None, **options):
    """One adapted layer after a task, and the data of a second one; all in double."""
    torch.manual_seed(0)
    model = nn.Sequential(Adapted(nn.Linear(6, 4)), nn.Tanh(), nn.Linear(4, 3).requires_grad_(False)).double()
    trained = [p for p in model.parameters() if p.requires_grad]
    opt = OPTIMIZERS[kind](trained, strength=strength, **{**DIRECTIONS, **options})
    first = [(x.double(), y) for x, y in task(0)]
    second = [(torch.cat([x for x, _ in task(1)]).double(), torch.cat([y for _, y in task(1)]))]
    fit(model, opt, first, 40)
    opt.consolidate(model, first, estimator or Kronecker(samples=40))
    return model, opt, second


def whole_penalty(opt, strength):
    """strength / 2 * sum of eigenvalue * (direction^T drift)^2, of the product in whole."""
    ((name, adapter),) = opt.progress.adapters.items()
    basis, saved = adapter.basis, opt.anchor.adapters[name]
    drift = adapter.scale * (adapter.b @ adapter.a - saved.b @ saved.a)
    along = basis.outputs[0].mT @ drift @ basis.inputs[0]
    return strength / 2 * (basis.eigenvalues[0, 0] * along.square()).sum()


@pytest.mark.parametrize("kind", ["sgd", "momentum", "adam"])
def test_it_ends_where_loss_and_penalty_balance(kind):
    model, opt, second = problem(kind)
    for _ in range(130):
        opt.step(closure_on(model, opt, second[0]))
    opt.eval()
    opt.zero_grad()
    total = nn.functional.cross_entropy(model(second[0][0]), second[0][1])
    slopes = [torch.autograd.grad(t, list(factors(opt))) for t in (total, whole_penalty(opt, 0.3))]
    size = max(float(g.norm()) for g in slopes[0])
    assert size > 1e-2
    left = max(float((g + h).norm()) for g, h in zip(*slopes))
    assert left < 0.003 * size
    assert opt.penalty() == pytest.approx(whole_penalty(opt, 0.3).item(), rel=1e-5)


@pytest.mark.parametrize("price", [0.0, 10.0, 1e6])
def test_an_automatic_strength_around_adam_does_not_depend_on_the_scale_of_the_loss(price, monkeypatch):
    """Adam cancels the scale. So must the hold, whether it comes from the length of the task or from delta's price."""
    monkeypatch.setattr(auto, "PRICE", float("inf"))
    monkeypatch.setattr(auto, "MOST", price)
    found = []
    for scale in (1.0, 1000.0):
        model, opt, ((x, y),) = problem("adam", "auto", normalise="none")
        (before,) = products(model)
        for _ in range(40):
            opt.zero_grad()
            (scale * nn.functional.cross_entropy(model(x), y)).backward()
            opt.step()
        opt.eval()
        found.append(products(model)[0] - before)
    free, opt, ((x, y),) = problem("adam", 0.0)
    (before,) = products(free)
    fit(free, opt, [(x, y)], 40)
    torch.testing.assert_close(found[0], found[1], rtol=1e-3, atol=1e-6)
    share = float(found[0].norm() / (products(free)[0] - before).norm())
    assert share < 0.01 if price > 1e3 else 0.1 < share < 1


@pytest.mark.parametrize("estimator", [Fisher(samples=40), Kronecker(samples=40)])
def test_nothing_and_everything(estimator):
    model, opt, second = problem("sgd", 0.0, estimator)
    plain = copy.deepcopy(model)
    sgd = torch.optim.SGD([p for p in plain.parameters() if p.requires_grad], lr=0.3)
    fit(model, opt, second, 5)
    fit(plain, sgd, second, 5)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), plain.parameters()))
    held, opt, second = problem("adam", float("inf"), estimator)
    before = copy.deepcopy(held.state_dict())
    fit(held, opt, second, 5)
    assert all(torch.equal(t, before[name]) for name, t in held.state_dict().items())


def test_only_the_product_counts():
    """Factors turned against each other take the same steps."""
    model, opt, second = problem("sgd")
    twin = copy.deepcopy(model)
    turn = torch.linalg.qr(torch.randn(2, 2, dtype=torch.float64))[0]
    layer = twin[0]
    with torch.no_grad():
        layer.lora_A["default"].weight.copy_(turn.mT @ layer.lora_A["default"].weight)
        layer.lora_B["default"].weight.copy_(layer.lora_B["default"].weight @ turn)
    other = DRCL([p for p in twin.parameters() if p.requires_grad], lr=0.3, strength=0.3, **DIRECTIONS)
    other.consolidate(twin, [(x.double(), y) for x, y in task(0)], Kronecker(samples=40))
    fit(model, opt, second, 20)
    fit(twin, other, second, 20)
    assert torch.allclose(products(model)[0], products(twin)[0])


@pytest.mark.parametrize("prox", ["l1", "l2", "elastic"])
@pytest.mark.parametrize("splitting", ["forward-backward", "douglas-rachford", "implicit"])
def test_every_way_to_negotiate_holds_it(splitting, prox):
    moved = []
    for strength in (0.0, 0.05, 1.0):
        model, opt, second = problem("sgd", strength, prox=prox, splitting="forward-backward")
        options = {"prox": prox, "splitting": splitting, "normalise": "task"}
        again = DRCL([p for p in model.parameters() if p.requires_grad], lr=0.02, strength=strength, **options)
        again.protect(model, opt.anchor)
        start = products(model)[0]
        for _ in range(10):
            again.step(closure_on(model, again, second[0]))
        again.eval()
        assert bool(torch.isfinite(products(model)[0]).all())
        moved.append(float((products(model)[0] - start).norm()))
    assert moved[0] > moved[1] > moved[2]


@pytest.mark.parametrize("kind", ["adam", "proposals"])
def test_resuming_in_the_middle_of_a_proposal_is_exact(kind):
    def made():
        model = adapted()
        ours = [p for p in model.parameters() if p.requires_grad]
        opt = OPTIMIZERS[kind](ours, strength=0.01, prox="l2", normalise="share", **more)
        return model, opt

    more = {} if kind == "proposals" else {"plasticity_steps": 4}
    model, opt = made()
    fit(model, opt, task(0), 2)
    opt.consolidate(model, task(0), Kronecker(samples=40))
    fit(model, opt, task(1), 1)
    assert opt.progress.steps_in_proposal == 1
    saved, held = copy.deepcopy(opt.state_dict()), copy.deepcopy(model.state_dict())
    again, other = made()
    again.load_state_dict(held)
    other.load_state_dict(saved)
    fit(model, opt, task(2), 2)
    fit(again, other, task(2), 2)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), again.parameters()))
    opt.consolidate(model, task(2), Kronecker(samples=40))
    other.consolidate(again, task(2), Kronecker(samples=40))
    for name, adapter in opt.anchor.adapters.items():
        assert all(torch.equal(t, other.anchor.adapters[name].tensors()[k]) for k, t in adapter.tensors().items())
    damaged = copy.deepcopy(saved)
    damaged["adapters"][0]["eigenvalues"] = torch.zeros(1, 1, 2, 2)
    with pytest.raises(ValueError, match=r"the adapter of '0\.base_layer\.weight'.*over the same model"):
        made()[1].load_state_dict(damaged)
    del damaged["adapters"][0]["name"]
    with pytest.raises(ValueError, match="an adapter of the state dict cannot be read"):
        made()[1].load_state_dict(damaged)


def test_factors_in_groups_of_their_own_and_one_that_stays():
    model, opt, second = problem("sgd")
    layer = model[0]
    a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    split = DRCL([{"params": [a], "lr": 0.0}, {"params": [b], "lr": 0.1}], strength=0.3, **DIRECTIONS)
    split.protect(model, opt.anchor)
    before = a.detach().clone(), b.detach().clone()
    fit(model, split, second, 3)
    assert torch.allclose(a, before[0])
    assert not torch.allclose(b, before[1])


def test_what_a_step_refuses():
    model, opt, second = problem("sgd", prox="l1")
    before = products(model)[0]
    opt.param_groups[0]["stable"] = 0.5
    with pytest.raises(ValueError, match=r"stable=0\.5 counts weights that stay in place"):
        fit(model, opt, second)
    assert torch.equal(before, products(model)[0])
    factor = model[0].lora_B["default"].weight
    with pytest.raises(ValueError, match="is a factor of an adapter, which is held by its product"):
        opt.grow(factor, nn.Parameter(torch.zeros(6, 2).double()))
