"""The step along the directions of an eigenbasis: exact where it holds, with every splitting, prox and wrapper.

The proximal map itself, importance over tasks and what is stored are in tests/directions.
"""

import copy

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from tests.directions.problems import VARIANTS, conv_net, images, projectors, protected, same, weights
from tests.tasks import closure_on, fit, mlp, task
from torch import nn
from torch.nn import functional as F

from drcl import DRCL, Anchor, Fisher, Kronecker, drift
from drcl.prox import GroupL1
from drcl.splitting.held_share import FLOOR


@pytest.mark.parametrize("splitting", ["douglas-rachford", "forward-backward"])
@pytest.mark.parametrize("prox", ["l1", "l2", "elastic"])
def test_with_diagonal_factors_it_is_the_diagonal_method(splitting, prox):
    """One-hot inputs and derivatives: A and G are diagonal, and the directions are the weights themselves."""
    torch.manual_seed(3)
    scale = torch.tensor([1.0, 2.0, 3.0, 4.0]).double()
    x = torch.eye(4).double()[torch.arange(12) % 4] * scale[torch.arange(12) % 4, None]
    data = [(x, torch.arange(12) % 3)]

    def loss(output, target):
        return output.gather(1, target[:, None])[:, 0] * (1.0 + target)

    models = [nn.Linear(4, 3, bias=False).double() for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    options = dict(lr=0.05, momentum=0.9, strength=0.2, splitting=splitting, prox=prox)
    opts = [DRCL(m.named_parameters(), **options) for m in models]
    estimators = Kronecker(labels="empirical", loss=loss), Fisher(labels="empirical", loss=loss)
    for model, opt, importance in zip(models, opts, estimators):
        opt.consolidate(model, data, importance=importance)
        for seed in range(6):
            opt.zero_grad()
            F.cross_entropy(model(torch.randn(8, 4, generator=_rng(seed)).double()), torch.arange(8) % 3).backward()
            opt.step()
    assert len(opts[0].anchor.bases) == 1
    torch.testing.assert_close(models[0].weight, models[1].weight, rtol=1e-9, atol=1e-12)
    opts[0].eval(), opts[1].eval()
    torch.testing.assert_close(models[0].weight, models[1].weight, rtol=1e-9, atol=1e-12)
    if prox != "l2":
        held = torch.isclose(models[0].weight, opts[0].anchor.weights["weight"], atol=1e-12, rtol=0)
        assert 0 < int(held.sum()) < 12


def _rng(seed):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("splitting", ["douglas-rachford", "forward-backward"])
@pytest.mark.parametrize("steps", [1, 3])
def test_infinite_strength_holds_every_weight_bit_for_bit(variant, splitting, steps):
    for model, data in ((mlp(), task(0)), (conv_net(), images(0))):
        opt = protected(
            model, data, VARIANTS[variant], strength=float("inf"), splitting=splitting, plasticity_steps=steps
        )
        before = weights(model)
        fit(model, opt, task(1) if len(data[0][0].shape) == 2 else images(1), epochs=3)
        with opt.deployed():
            assert same(before, weights(model))


def test_a_layer_all_of_whose_directions_are_held_is_the_anchor_bit_for_bit():
    model, data = mlp(), task(0)
    opt = protected(model, data, strength=1e-3, damping=1.0)
    before = weights(model)
    assert (before["0.weight"] != 0).any()
    opt.param_groups[0]["strength"] = 1e6  # every |D| lies under its threshold, none of them infinite
    fit(model, opt, task(1))
    opt.eval()
    assert same(before, weights(model))


def test_strength_zero_is_no_protection():
    model, data = mlp(), task(0)
    opt = protected(model, data, strength=0.0, splitting="forward-backward", momentum=0.9)
    free = copy.deepcopy(model)
    sgd = torch.optim.SGD(free.parameters(), lr=0.05, momentum=0.9)
    fit(model, opt, task(1))
    fit(free, sgd, task(1))
    for name, w in weights(model).items():
        torch.testing.assert_close(w, weights(free)[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("splitting", ["douglas-rachford", "forward-backward"])
def test_one_negotiation_for_several_steps_takes_the_sum_of_their_rates(splitting):
    model, data = mlp().double(), [(x.double(), y) for x, y in task(0)]
    opt = protected(model, data, plasticity_steps=3, splitting=splitting, momentum=0.9, strength=0.02, lr=0.1)
    free = copy.deepcopy(model)
    sgd = torch.optim.SGD(free.parameters(), lr=0.1, momentum=0.9)
    anchor = opt.anchor
    for k, batch in enumerate([(x.double(), y) for x, y in task(1)][:3]):
        rate = 0.1 / (k + 1)
        for o in (opt, sgd):
            o.param_groups[0]["lr"] = rate
        fit(model, opt, [batch])
        fit(free, sgd, [batch])
    gamma = 0.1 * (1 + 1 / 2 + 1 / 3) / (1 - 0.9)
    x = weights(free)
    opt.eval()
    for layer in ("0", "2"):
        basis = anchor.bases[f"{layer}.weight"]
        moved = [x[f"{layer}.{n}"] - anchor.weights[f"{layer}.{n}"] for n in ("weight", "bias")]
        d = torch.cat([moved[0], moved[1][:, None]], 1) * (2 if splitting == "douglas-rachford" else 1)
        d = basis.outputs[0].T @ d @ basis.inputs[0]
        d = torch.sign(d) * (d.abs() - gamma * 0.02 * basis.eigenvalues[0, 0]).clamp(min=0)
        z = basis.outputs[0] @ d @ basis.inputs[0].T
        torch.testing.assert_close(weights(model)[f"{layer}.weight"], anchor.weights[f"{layer}.weight"] + z[:, :-1])
        torch.testing.assert_close(weights(model)[f"{layer}.bias"], anchor.weights[f"{layer}.bias"] + z[:, -1])


def test_implicit_and_wrapped_optimizers_take_it_too():
    for make in (
        lambda m: DRCL(m.named_parameters(), lr=0.05, splitting="implicit", inner_steps=3, strength=0.01),
        lambda m: DRCL.around(
            torch.optim.AdamW(m.named_parameters(), lr=1e-3), strength=0.01, splitting="douglas-rachford"
        ),
    ):
        model = mlp()
        opt = make(model)
        opt.consolidate(model, task(0), importance=Kronecker())
        before = weights(model)
        for batch in task(1):
            opt.step(closure_on(model, opt, batch))
        opt.eval()
        after = weights(model)
        assert all(torch.isfinite(w).all() for w in after.values())
        assert not same(before, after)


def test_a_bias_of_another_group_stands_alone_and_a_free_one_is_left_out():
    for free in (False, True):
        model = mlp()
        biases = [p for n, p in model.named_parameters() if n.endswith("bias")]
        others = [p for n, p in model.named_parameters() if n.endswith("weight")]
        groups = [{"params": others}, {"params": biases, "free": free}]
        opt = DRCL(groups, lr=0.05, strength=float("inf"), splitting="douglas-rachford")
        opt.consolidate(model, task(0), importance=Kronecker())
        assert [layer.bias for layer in opt.progress.layers.values()] == [None, None]
        before = weights(model)
        fit(model, opt, task(1))
        opt.eval()
        for name, w in weights(model).items():
            assert torch.equal(w, before[name]) == (name.endswith("weight") or not free)


def test_frozen_parts_of_a_layer():
    model = mlp()
    opt = protected(model, task(0), splitting="forward-backward", strength=1e-4)
    before = weights(model)
    model[0].bias.requires_grad_(False)
    model[2].weight.requires_grad_(False)
    fit(model, opt, task(1))
    after = weights(model)
    assert torch.equal(before["0.bias"], after["0.bias"])
    assert torch.equal(before["2.weight"], after["2.weight"])
    assert not torch.equal(before["0.weight"], after["0.weight"])
    assert not torch.equal(before["2.bias"], after["2.bias"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    model = mlp().to(dtype)
    data = [(x.to(dtype), y) for x, y in task(0)]
    opt = protected(model, data, momentum=0.9, lr=0.02)
    assert all(b.inputs.dtype == torch.float32 for b in opt.anchor.bases.values())
    fit(model, opt, [(x.to(dtype), y) for x, y in task(1)])
    assert all(torch.isfinite(w).all() and w.dtype == dtype for w in weights(model).values())


@pytest.mark.parametrize("rank", [None, 12])
@pytest.mark.parametrize("share", [0.5, 0.9])
def test_stable_holds_this_share_of_directions(rank, share):
    """The strength is the quantile of |D| / (gamma F) over directions; those left out are held row by row."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 3)).double()
    data = [(x.double(), y) for x, y in task(0, features=20)]
    opt = DRCL(model.named_parameters(), lr=0.05, stable=share, splitting="forward-backward")
    fit(model, opt, data)
    opt.consolidate(model, data, importance=Kronecker(rank=rank))
    anchor = opt.anchor
    closure_on(model, opt, task(1, features=20)[0])()
    ratios = []
    for name, basis in anchor.bases.items():
        layer = model[int(name[0])]
        d = -0.05 * torch.cat([layer.weight.grad, layer.bias.grad[:, None]], 1)
        # The floor lets directions be held that no task used.
        v, u, f = basis.outputs[0], basis.inputs[0], basis.eigenvalues[0, 0] + FLOOR
        for i, p in enumerate(projectors(v)):
            for k, q in enumerate(projectors(u)):
                count = round(float(p.trace() * q.trace()))
                ratios += [float((p @ d @ q).norm() / (0.05 * f[i, k] * count**0.5))] * count
    opt.step()
    assert len(ratios) == sum(p.numel() for p in model.parameters())
    assert opt.strengths[0] == pytest.approx(sorted(ratios)[round(share * len(ratios)) - 1], rel=1e-3)
    if rank is None:
        assert drift(model, anchor).total.directions_unmoved == pytest.approx(share, abs=0.01)


def test_other_maps_are_refused_and_nothing_changes():
    for prox in ("group", "box", lambda r, a, t: r, GroupL1(1)):
        model = mlp()
        opt = DRCL(model.named_parameters(), lr=0.05, prox=prox)
        with pytest.raises(ValueError, match="use prox='l1'"):
            opt.consolidate(model, task(0), importance=Kronecker())
        assert opt.tasks == 0
        assert opt.anchor is None


def test_drift_counts_directions():
    torch.manual_seed(6)
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.LayerNorm(4), nn.Linear(4, 3))
    anchor = protected(model, task(0, features=5)).anchor
    with torch.no_grad():
        for name, w in anchor.weights.items():
            dict(model.named_parameters())[name].copy_(w)
    untouched = drift(model, anchor)
    assert untouched.total.directions_unmoved == 1.0
    basis = anchor.bases["0.weight"]
    d = torch.zeros_like(basis.eigenvalues)
    d[0, 0, 1, 2], d[0, 0, 3, 0], d[0, 0, 2, 4] = 0.1, -0.02, 0.003
    whole = basis.rotate_back(d)
    weight, bias = whole[..., :-1], whole[..., -1:]
    with torch.no_grad():
        model[0].weight += weight[0, 0]
        model[0].bias += bias[0, 0, :, 0]
        model[2].weight[1] += 0.5
    report = drift(model, anchor)
    rows = {row.layer: row for row in report}
    assert rows["0"].directions_unmoved == pytest.approx(21 / 24)
    assert rows["3"].directions_unmoved == 1.0
    assert np.isnan(rows["2"].directions_unmoved)
    assert report.total.directions_unmoved == pytest.approx((21 + 7 + 15) / 47)
    assert "directions" in str(report)
    assert "87.5%" in str(report)
    assert "directions" not in str(drift(mlp(), _plain(mlp())))
    assert report.to_pandas()["directions_unmoved"]["0"] == pytest.approx(21 / 24)


def _plain(model):
    own = {n: p.detach().clone() for n, p in model.named_parameters()}
    return Anchor(own, {n: torch.ones_like(p) for n, p in own.items()})


def test_it_remembers_where_single_weights_forget():
    """Four pixel permutations of the digits; 0.01 is about the best strength of the diagonal form here."""
    digits = load_digits()
    x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    accuracy = {}
    for name, importance, strength in (("diagonal", Fisher(), 0.01), ("Kronecker", Kronecker(), 0.3)):
        rng = _rng(0)
        pixels = [torch.randperm(64, generator=rng) for _ in range(4)]
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        options = dict(lr=0.02, momentum=0.9, splitting="forward-backward", prox="l2", plasticity_steps=5)
        opt = DRCL(model.named_parameters(), strength=strength, **options)
        for order in pixels:
            for _ in range(6):
                rows = torch.randperm(1400, generator=rng).split(28)
                fit(model, opt, [(x[r][:, order], y[r]) for r in rows])
            opt.consolidate(model, [(x[:1400, order], y[:1400])], importance=importance)
        hits = [(model(x[1400:, order]).argmax(1) == y[1400:]).float().mean() for order in pixels]
        accuracy[name] = float(sum(hits)) / 4
    assert accuracy["Kronecker"] > accuracy["diagonal"] + 0.1, accuracy
    assert accuracy["Kronecker"] > 0.8, accuracy
