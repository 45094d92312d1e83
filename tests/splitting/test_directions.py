"""The step along the directions of an eigenbasis: optimal, exact where it holds, stored and resumed like any other."""

import copy
import itertools
from dataclasses import replace

import cvxpy
import numpy as np
import pytest
import torch
from safetensors import safe_open
from sklearn.datasets import load_digits
from tests.tasks import closure_on, fit, mlp, task
from torch import nn
from torch.nn import functional as F

from drcl import DRCL, Anchor, AnchorError, Fisher, Kronecker, drift
from drcl.directions.basis import Eigenbasis
from drcl.prox import ElasticNet, GroupL1
from drcl.splitting.held_share import FLOOR

VARIANTS = {
    "both": {},
    "long sides": {"largest": 7},  # of each of the networks below some sides are rotated and some are not
    "product": {"eigenvalues": "product"},
    "rank": {"rank": 3},
}


def weights(model):
    return {n: p.detach().clone() for n, p in model.named_parameters()}


def same(one, two):
    return all(torch.equal(w, two[n]) for n, w in one.items())


def conv_net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        *(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.BatchNorm2d(4)),
        *(nn.Conv2d(4, 4, 2, stride=2, groups=2, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)),
    )


def images(seed, batches=3):
    rng = torch.Generator().manual_seed(seed)
    made = [torch.randn(8, 2, 4, 4, generator=rng) for _ in range(batches)]
    return [(x, (x.mean((2, 3)) @ torch.randn(2, 3, generator=rng)).argmax(1)) for x in made]


def protected(model, data, options=None, **more):
    """An optimizer with one task behind it."""
    opt = DRCL(model.named_parameters(), **{"lr": 0.05, "strength": 0.1, "splitting": "douglas-rachford", **more})
    fit(model, opt, data)
    opt.consolidate(model, data, importance=Kronecker(**(options or {})))
    return opt


# -- the proximal map ----------------------------------------------------------------------------------------------


# Inputs and outputs of a layer, and the sides that are rotated.
SIDES = {
    "both": (3, 2, {}),
    "product": (3, 2, {"eigenvalues": "product"}),
    "outputs": (3, 2, {"largest": 3}),
    "inputs": (2, 4, {"largest": 3}),
    "neither": (3, 2, {"largest": 1}),
}


@pytest.mark.parametrize("mix", [1.0, 0.0, 0.4])
@pytest.mark.parametrize("sides", SIDES)
def test_a_step_minimises_penalty_and_distance(mix, sides):
    torch.manual_seed(0)
    inputs, outputs, options = SIDES[sides]
    model = nn.Linear(inputs, outputs).double()
    data = [(torch.randn(12, inputs).double(), torch.randint(outputs, (12,)))]
    opt = DRCL(model.named_parameters(), lr=0.1, strength=0.3, splitting="forward-backward", prox=ElasticNet(mix))
    opt.consolidate(model, data, importance=Kronecker(labels="exact", **options))
    basis = opt.anchor.bases["weight"]
    anchor = torch.cat([model.weight, model.bias[:, None]], 1).detach()
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    r = anchor - 0.1 * torch.cat([model.weight.grad, model.bias.grad[:, None]], 1)
    opt.step()
    found = torch.cat([model.weight, model.bias[:, None]], 1).detach()

    assert (basis.inputs is None, basis.outputs is None) == (
        sides in ("outputs", "neither"),
        sides in ("inputs", "neither"),
    )
    v = np.eye(outputs) if basis.outputs is None else basis.outputs[0].numpy()
    u = np.eye(inputs + 1) if basis.inputs is None else basis.inputs[0].numpy()
    w = cvxpy.Variable((outputs, inputs + 1))
    d = v.T @ (w - anchor.numpy()) @ u
    f = 0.1 * 0.3 * basis.eigenvalues[0, 0].numpy()
    penalty = cvxpy.sum(cvxpy.multiply(f, mix * cvxpy.abs(d) + (1 - mix) / 2 * cvxpy.square(d)))
    problem = cvxpy.Problem(cvxpy.Minimize(penalty + cvxpy.sum_squares(w - r.numpy()) / 2))
    problem.solve(solver=cvxpy.CLARABEL, tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12)
    np.testing.assert_allclose(found.numpy(), w.value, atol=1e-6)
    assert not torch.allclose(found, r, atol=1e-4)


CUTS = {"both": (2, 3), "inputs": (4, 3), "outputs": (2, 5)}


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("mix", [1.0, 0.0, 0.4])
@pytest.mark.parametrize("strength", [0.02, 0.3, 3.0])
def test_the_rest_is_held_row_by_row_and_column_by_column(mix, strength, cut):
    torch.manual_seed(0)
    j, k = CUTS[cut]
    model = nn.Linear(4, 4).double()
    data = [(torch.randn(12, 4).double(), torch.randint(4, (12,)))]
    opt = DRCL(model.named_parameters(), lr=0.1, strength=strength, prox=ElasticNet(mix))
    opt.consolidate(model, data, importance=Kronecker(labels="exact"))
    basis = opt.anchor.bases["weight"]
    v, u = basis.outputs[..., :j].contiguous(), basis.inputs[..., :k].contiguous()
    f = torch.rand(1, 1, j + (j < 4), k + (k < 5)).double()
    layer = opt.progress.layers[model.weight]
    layer.basis = basis = replace(basis, outputs=v, inputs=u, eigenvalues=f)
    basis.check(model.weight)
    assert (basis.directions, basis.left_out) == (j * k, 20 - j * k)
    anchor = torch.cat([model.weight, model.bias[:, None]], 1).detach()
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    r = anchor - 0.1 * torch.cat([model.weight.grad, model.bias.grad[:, None]], 1)
    opt.step()
    found = torch.cat([model.weight, model.bias[:, None]], 1).detach()

    v, u, f = v[0].numpy(), u[0].numpy(), 0.1 * strength * f[0, 0].numpy()
    out, into = np.eye(4) - v @ v.T, np.eye(5) - u @ u.T
    w = cvxpy.Variable((4, 5))
    d = w - anchor.numpy()
    blocks = [(v[:, [i]].T @ d @ u[:, [l]], f[i, l], 1) for i in range(j) for l in range(k)]
    blocks += [(v[:, [i]].T @ d @ into, f[i, k], 5 - k) for i in range(j) if k < 5]
    blocks += [(out @ d @ u[:, [l]], f[j, l], 4 - j) for l in range(k) if j < 4]
    blocks += [(out @ d @ into, f[j, k], (4 - j) * (5 - k))] if j < 4 and k < 5 else []
    penalty = sum(t * mix * np.sqrt(n) * cvxpy.norm(x, "fro") for x, t, n in blocks)
    penalty += sum(t * (1 - mix) / 2 * cvxpy.sum_squares(x) for x, t, _ in blocks)
    problem = cvxpy.Problem(cvxpy.Minimize(penalty + cvxpy.sum_squares(w - r.numpy()) / 2))
    problem.solve(solver=cvxpy.CLARABEL, tol_gap_abs=1e-9, tol_gap_rel=1e-9, tol_feas=1e-9)
    np.testing.assert_allclose(found.numpy(), w.value, atol=1e-6)


def block_means(full, j, k):
    """Eigenvalues of a complete basis with everything beyond j x k as means of rows, of columns and of the tail."""
    f = full[..., : j + 1, : k + 1].clone()
    f[..., :j, k] = full[..., :j, k:].mean(-1)
    f[..., j, :k] = full[..., j:, :k].mean(-2)
    f[..., j, k] = full[..., j:, k:].mean((-2, -1))
    return f


@pytest.mark.parametrize("kind", ["linear", "conv", "channels", "tokens"])
@pytest.mark.parametrize("eigenvalues", ["exact", "product"])
def test_what_is_left_out_has_the_mean_of_its_importance(kind, eigenvalues):
    torch.manual_seed(0)
    if kind in ("conv", "channels"):
        model = nn.Sequential(nn.Conv2d(4, 10, 2, groups=2), nn.Flatten(1), nn.Linear(40, 3)).double()
        x = torch.randn(15, 4, 3, 3).double()
    elif kind == "tokens":
        model = nn.Sequential(nn.Linear(7, 5), nn.Tanh(), nn.Flatten(1), nn.Linear(20, 3)).double()
        x = torch.randn(15, 4, 7).double()
    else:
        model = nn.Sequential(nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 3)).double()
        x = torch.randn(15, 7).double()
    data = [(x, torch.randint(3, (15,)))]
    options = dict(
        labels="exact", eigenvalues=eigenvalues, convolutions="channels" if kind == "channels" else "patches"
    )
    named = dict(model.named_parameters())
    full = Kronecker(**options).measure(model, data, named).bases["0.weight"]
    rank = 1 if kind == "channels" else 3
    few = Kronecker(**options, rank=rank).measure(model, data, named).bases["0.weight"]
    assert few.left_out > 0
    torch.testing.assert_close(few.eigenvalues, block_means(full.eigenvalues, rank, rank))
    assert few.total == pytest.approx(full.total)


@pytest.mark.parametrize("cut", [(2, 3), (4, 3), (2, 5)])
@pytest.mark.parametrize("before", [(3, 2), (4, 2), (3, 5), (4, 5)])
def test_importance_goes_from_one_cut_basis_to_another_as_the_full_operator_would(before, cut):
    """Against the operator written out: its mean quadratic form over each block of the new directions."""
    generator = torch.Generator().manual_seed(0)

    def basis(j, k):
        q = [torch.linalg.qr(torch.randn(n, n, generator=generator).double())[0] for n in (5, 4)]
        f = torch.rand(1, 1, j + (j < 4), k + (k < 5), generator=generator).double()
        u, v = q[0][None, :, :k], q[1][None, :, :j]
        return Eigenbasis(u, v, f, torch.eye(5)[None].double(), torch.eye(4)[None].double(), bias=True)

    def projectors(u):
        found = [torch.outer(c, c) for c in u[0].T]
        return found if u.shape[1] == u.shape[2] else [*found, torch.eye(u.shape[1]).double() - u[0] @ u[0].T]

    old, new = basis(*before), basis(*cut)
    pairs = itertools.product(enumerate(projectors(old.outputs)), enumerate(projectors(old.inputs)))
    whole = sum(old.eigenvalues[0, 0, i, l] * torch.kron(p, q) for (i, p), (l, q) in pairs)
    wanted = torch.tensor(
        [
            [
                float(torch.trace(whole @ torch.kron(p, q)) / torch.trace(torch.kron(p, q)))
                for q in projectors(new.inputs)
            ]
            for p in projectors(new.outputs)
        ]
    )
    torch.testing.assert_close(old.seen_in(new)[0, 0], wanted.double())
    weight, bias = old.diagonal()
    torch.testing.assert_close(torch.cat([weight, bias[..., None]], -1).flatten(), whole.diagonal())
    seen = replace(new, eigenvalues=new.see(torch.cat([weight, bias[..., None]], -1)))
    assert seen.total == pytest.approx(old.total)
    assert replace(new, eigenvalues=old.seen_in(new)).total == pytest.approx(old.total)


@pytest.mark.parametrize("variant", ["rank", "both"])
def test_leaving_directions_out_does_not_change_the_unit_of_strength(variant):
    means, model = [], mlp()
    for options in ({}, VARIANTS[variant]):
        opt = DRCL(model.named_parameters(), lr=0.05, normalise="global")
        for seed in range(3):
            opt.consolidate(model, task(seed), importance=Kronecker(**options))
        means.append(opt.importance_mean)
        assert sum(float(i.sum()) for i in opt.anchor.importance.values()) == pytest.approx(163, rel=1e-4)
    assert means[0] == pytest.approx(means[1], rel=1e-3)


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
    gamma = 0.1 * (1 + 1 / 2 + 1 / 3)
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


# -- importance ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", ["sum", "latest", 0.5])
@pytest.mark.parametrize("variant", ["both", "product"])
def test_importance_has_mean_one_and_adds_up_over_tasks(memory, variant):
    model, one, two = mlp(), task(0), task(1)
    options = {**VARIANTS[variant], "labels": "exact"}
    opt = DRCL(model.named_parameters(), lr=0.05, memory=memory, normalise="global")
    opt.consolidate(model, one, importance=Kronecker(**options))
    first, mean = opt.anchor, opt.importance_mean
    opt.consolidate(model, two, importance=Kronecker(**options))
    second = opt.anchor
    count = sum(w.numel() for w in second.weights.values())
    assert sum(float(i.sum()) for i in second.importance.values()) == pytest.approx(count, rel=1e-4)
    assert sum(float(b.eigenvalues.sum()) for b in second.bases.values()) == pytest.approx(count, rel=1e-4)
    keep = {"sum": 1.0, "latest": 0.0}.get(str(memory), memory)
    fresh = Kronecker(**options).measure(model, two, dict(model.named_parameters())).bases
    for name, basis in second.bases.items():
        torch.testing.assert_close(
            basis.input_factor, keep * first.bases[name].input_factor + fresh[name].input_factor, rtol=1e-4, atol=1e-5
        )
        if variant == "both":
            total = keep * mean * first.bases[name].eigenvalues.sum() + fresh[name].eigenvalues.sum()
            torch.testing.assert_close(basis.eigenvalues.sum() * opt.importance_mean, total, rtol=1e-3, atol=1e-6)


def two_small_tasks(variant):
    """A network with a convolution, a norm and a linear layer, Kronecker's options, and the data of two tasks."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(1, 4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
    options = dict(labels="empirical", **({"convolutions": "channels"} if variant == "channels" else {}))
    options |= {"rest": {"rank": 2}, "product": {"eigenvalues": "product"}}.get(variant, {})
    return model, options, [[(torch.randn(10, 1, 6, 6), torch.randint(3, (10,)))] for _ in range(2)]


def trace_of_product(basis):
    """The sum over groups and kernel positions of trace(A) trace(G)."""
    traces = [f.diagonal(dim1=-2, dim2=-1).sum(-1) for f in (basis.input_factor, basis.output_factor)]
    return float((traces[0] * traces[1]).sum()) * basis.eigenvalues.shape[1]


@pytest.mark.parametrize("keep", [1.0, 0.0, 0.3])
@pytest.mark.parametrize("variant", ["both", "rest", "channels", "product"])
@pytest.mark.parametrize("normalise", ["task", "share"])
def test_every_task_in_its_own_unit_over_two_tasks(variant, keep, normalise):
    """Each task alone, divided by its mean over all directions and weights by hand, adds up to what is held."""
    model, options, data = two_small_tasks(variant)
    named = dict(model.named_parameters())
    size = sum(p.numel() for p in named.values())
    opt = DRCL(named.items(), lr=0.05, memory=keep, normalise=normalise)
    wanted = {"task": 1.0, "share": 1e6 / size}[normalise]
    totals, factors, raw = {}, {}, []
    for part in data:
        alone = Kronecker(**options).measure(model, part, named)
        opt.consolidate(model, part, importance=Kronecker(**options))
        # G carries the unit, in which the products of the factors and what is outside of them have the sum wanted.
        products = sum(trace_of_product(basis) for basis in alone.bases.values())
        outside = ["1.weight", "1.bias", *(["0.bias"] if variant == "channels" else [])]
        unit = wanted * size / (products + sum(float(alone.importance[n].sum()) for n in outside))
        for name, basis in alone.bases.items():
            factors[name] = keep * factors.get(name, 0.0) + basis.output_factor * unit
        mean = sum(float(t.double().sum()) for t in alone.importance.values()) / size
        raw.append(mean)
        with torch.no_grad():
            model[4].weight.mul_(5)  # the second task's gradients are larger
        for name, t in alone.importance.items():
            basis = alone.bases.get(name)
            fresh = (t if basis is None else basis.total) / mean * wanted
            totals[name] = keep * totals.get(name, 0.0) + fresh
    assert raw[1] > 3 * raw[0]
    held = opt.anchor
    assert opt.importance_mean == 1.0
    for name, basis in held.bases.items():
        torch.testing.assert_close(basis.output_factor, factors[name], rtol=1e-4, atol=1e-6)
    if variant != "product":  # of sums, not a sum of products
        everything = sum(float(t.double().sum()) for t in held.importance.values())
        assert everything / size == pytest.approx(wanted * (1 + keep), rel=1e-3)
        for name, basis in held.bases.items():
            assert basis.total == pytest.approx(totals[name], rel=1e-3)
    for name in ("1.weight", "1.bias"):
        torch.testing.assert_close(held.importance[name], totals[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("normalise", ["task", "share"])
def test_a_layer_of_no_importance_stays_at_zero(normalise):
    model = mlp()
    with torch.no_grad():
        model[2].weight.zero_()  # nothing comes back to the first layer
    opt = DRCL(model.named_parameters(), lr=0.05, normalise=normalise)
    for eigenvalues in ("exact", "product"):
        opt.consolidate(model, task(0), importance=Kronecker(eigenvalues=eigenvalues))
        first, second = opt.anchor.bases["0.weight"], opt.anchor.bases["2.weight"]
        assert not first.eigenvalues.any()
        assert second.eigenvalues.isfinite().all()
        assert second.eigenvalues.any()


def test_estimators_may_change_between_tasks():
    model, data = mlp(), task(0)
    opt = DRCL(model.named_parameters(), lr=0.05, normalise="global")
    opt.consolidate(model, data)
    fisher = opt.importance_mean
    opt.consolidate(model, data, importance=Kronecker(labels="sampled"))
    assert opt.importance_mean == pytest.approx(2 * fisher, rel=1e-3)
    assert len(opt.anchor.bases) == 2
    opt.consolidate(model, data, importance=Kronecker(labels="sampled", largest=7))
    assert opt.importance_mean == pytest.approx(3 * fisher, rel=1e-3)
    opt.consolidate(model, data)
    assert opt.importance_mean == pytest.approx(4 * fisher, rel=1e-3)
    assert not opt.anchor.bases


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


@pytest.mark.parametrize("first", [Fisher(labels="exact"), Kronecker(labels="exact")], ids=["weights", "directions"])
@pytest.mark.parametrize("frozen", ["weight", "bias"])
def test_a_part_that_was_frozen_until_now_joins_its_layer(first, frozen):
    """What the other part mattered is kept: the sums of both tasks add up."""
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    getattr(model, frozen).requires_grad_(False)
    opt = DRCL(model.named_parameters(), lr=0.05, normalise="global")
    opt.consolidate(model, task(0), importance=first)
    earlier = opt.importance_mean * sum(float(t.sum()) for t in opt.anchor.importance.values())
    getattr(model, frozen).requires_grad_(True)
    alone = Kronecker(labels="exact").estimate(model, task(1), dict(model.named_parameters()))
    opt.consolidate(model, task(1), importance=Kronecker(labels="exact"))
    assert opt.anchor.bases["weight"].bias
    both = opt.importance_mean * opt.anchor.bases["weight"].total
    assert both == pytest.approx(earlier + sum(float(t.sum()) for t in alone.values()), rel=1e-4)


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
        for i, p in enumerate(_projectors(v)):
            for k, q in enumerate(_projectors(u)):
                count = round(float(p.trace() * q.trace()))
                ratios += [float((p @ d @ q).norm() / (0.05 * f[i, k] * count**0.5))] * count
    opt.step()
    assert len(ratios) == sum(p.numel() for p in model.parameters())
    assert opt.strengths[0] == pytest.approx(sorted(ratios)[round(share * len(ratios)) - 1], rel=1e-3)
    if rank is None:
        assert drift(model, anchor).total.directions_unmoved == pytest.approx(share, abs=0.01)


def _projectors(u):
    """On each column, and on what all of them leave out."""
    found = [torch.outer(c, c) for c in u.T]
    return found if u.shape[0] == u.shape[1] else [*found, torch.eye(len(u)).to(u) - u @ u.T]


def test_other_maps_are_refused_and_nothing_changes():
    for prox in ("group", "box", lambda r, a, t: r, GroupL1(1)):
        model = mlp()
        opt = DRCL(model.named_parameters(), lr=0.05, prox=prox)
        with pytest.raises(ValueError, match="use prox='l1'"):
            opt.consolidate(model, task(0), importance=Kronecker())
        assert opt.tasks == 0
        assert opt.anchor is None


# -- stored --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("splitting", ["douglas-rachford", "forward-backward"])
@pytest.mark.parametrize(("steps", "variant"), [(1, "both"), (3, "rank"), (1, "long sides")])
def test_resuming_in_the_middle_of_a_task_changes_nothing(splitting, steps, variant, tmp_path):
    model = conv_net()
    opt = protected(
        model, images(0), VARIANTS[variant], momentum=0.9, splitting=splitting, plasticity_steps=steps, lr=0.1
    )
    fit(model, opt, images(1)[:2])
    torch.save({"model": model.state_dict(), "opt": opt.state_dict()}, tmp_path / "saved.pt")
    twin_model, twin = copy.deepcopy((model, opt))
    saved = torch.load(tmp_path / "saved.pt", weights_only=True)
    fresh = conv_net(9)
    again = DRCL(
        fresh.named_parameters(), lr=0.1, strength=0.1, momentum=0.9, splitting=splitting, plasticity_steps=steps
    )
    fresh.load_state_dict(saved["model"])
    again.load_state_dict(saved["opt"])
    for m, o in ((model, opt), (twin_model, twin), (fresh, again)):
        fit(m, o, images(2))
        o.consolidate(m, images(2), importance=Kronecker(**VARIANTS[variant]))
        fit(m, o, images(3))
        o.eval()
    assert same(weights(model), weights(twin_model))
    assert same(weights(model), weights(fresh))


def test_a_state_of_another_network_is_refused_before_anything_changes():
    opt = protected(mlp(), task(0))
    state = opt.state_dict()
    state["layers"][0]["inputs"] = state["layers"][0]["inputs"][:, :-1]
    model = mlp(1)
    other = DRCL(model.named_parameters(), lr=0.05, splitting="douglas-rachford")
    with pytest.raises(ValueError, match=r"'0\.weight'.*inputs"):
        other.load_state_dict(state)
    assert other.tasks == 0
    assert not other.progress.layers


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_anchor_file_carries_the_bases(variant, tmp_path):
    model = conv_net()
    opt = protected(model, images(0), {**VARIANTS[variant], "convolutions": "channels"})
    opt.anchor.save(tmp_path / "a.safetensors")
    with safe_open(tmp_path / "a.safetensors", framework="pt") as file:
        assert file.metadata()["format"] == "drcl.anchor/3"
    loaded = Anchor.load(tmp_path / "a.safetensors", model)
    for name, basis in opt.anchor.bases.items():
        assert loaded.bases[name].facts() == basis.facts()
        for key, t in basis.tensors().items():
            assert torch.equal(loaded.bases[name].tensors()[key], t)
    other = conv_net(5)
    other.load_state_dict(model.state_dict())
    again = DRCL(other.named_parameters(), lr=0.05, strength=0.1, splitting="douglas-rachford")
    again.protect(other, loaded)
    for m, o in ((model, opt), (other, again)):
        fit(m, o, images(1))
        o.consolidate(m, images(1), importance=Kronecker(**VARIANTS[variant]))
        fit(m, o, images(2))
    assert same(weights(model), weights(other))
    assert again.importance_mean == opt.importance_mean


def test_an_anchor_of_single_weights_has_no_bases(tmp_path):
    model = mlp()
    opt = DRCL(model.named_parameters(), lr=0.05)
    opt.consolidate(model, task(0))
    opt.anchor.save(tmp_path / "a.safetensors")
    assert Anchor.load(tmp_path / "a.safetensors").bases == {}


def test_a_basis_that_does_not_fit_is_refused():
    good = protected(mlp(), task(0)).anchor
    for change, words in (
        ({"3.weight": good.bases["2.weight"]}, "3.weight"),
        ({"0.weight": good.bases["2.weight"]}, "0.weight"),
    ):
        with pytest.raises(AnchorError, match=words):
            Anchor(good.weights, good.importance, {}, change)
    weights_only = {n: w for n, w in good.weights.items() if n != "0.bias"}
    importance = {n: i for n, i in good.importance.items() if n != "0.bias"}
    with pytest.raises(AnchorError, match=r"0\.bias"):
        Anchor(weights_only, importance, {}, good.bases)


def test_protecting_with_another_map_or_other_groups_is_refused():
    model = mlp()
    anchor = protected(model, task(0)).anchor
    with pytest.raises(ValueError, match="use prox='l1'"):
        DRCL(model.named_parameters(), lr=0.05, prox="box").protect(model, anchor)
    named = dict(model.named_parameters())
    parts = [[(n, p) for n, p in named.items() if n.endswith(end)] for end in ("weight", "bias")]
    opt = DRCL([{"params": part} for part in parts], lr=0.05)
    with pytest.raises(ValueError, match="different groups"):
        opt.protect(model, anchor)
    assert opt.tasks == 0


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
    """Four pixel permutations of the digits; 0.1 is about the best strength of the diagonal form here."""
    digits = load_digits()
    x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    accuracy = {}
    for name, importance, strength in (("diagonal", Fisher(), 0.1), ("Kronecker", Kronecker(), 3.0)):
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
