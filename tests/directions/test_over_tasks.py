"""Importance along directions over several tasks, as an optimizer holds it, against tasks measured one by one."""

import pytest
import torch
from tests.directions.problems import VARIANTS
from tests.tasks import mlp, task
from torch import nn

from drcl import DRCL, Fisher, Kronecker


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
