"""Every proximal map against pyproximal, a numerical minimiser and the properties all of them share."""

import math

import hypothesis.extra.numpy as hnp
import numpy as np
import pyproximal
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize, minimize_scalar
from torch import nn

import drcl
from drcl.prox import L1, L2, Box, ElasticNet, GroupL1, Penalty, per_step_threshold, resolve

ALL = [L1(), L2(), ElasticNet(0.0), ElasticNet(0.3), ElasticNet(1.0), GroupL1(), GroupL1(dim=1), Box()]
SELECTING = [L1(), ElasticNet(0.3), ElasticNet(1.0), GroupL1(), GroupL1(dim=1)]
SHAPE = (3, 2)

some = settings(max_examples=20, deadline=None)
numbers = st.floats(-100, 100, allow_subnormal=False)
points = hnp.arrays(np.float64, SHAPE, elements=numbers)
thresholds = hnp.arrays(np.float64, SHAPE, elements=st.floats(0, 50, allow_subnormal=False))
every = pytest.mark.parametrize("prox", ALL, ids=repr)


def apply(prox, r, anchor, threshold):
    return prox(*(torch.from_numpy(np.asarray(v, dtype=np.float64)) for v in (r, anchor, threshold))).numpy()


def groups_of(prox, values):
    """Rows or columns as a list of vectors."""
    return list(values if prox.dim == 0 else values.T)


def penalty(prox, d, t):
    """What the prox says its penalty is, at w - anchor = d."""
    w, weight = (torch.from_numpy(np.asarray(v, dtype=np.float64)) for v in (d, t))
    return float(prox.penalty(w, torch.zeros_like(w), weight))


def by_pyproximal(prox, r, a, t):
    if isinstance(prox, L1):
        return pyproximal.L1(sigma=t.ravel(), g=a.ravel()).prox(r.ravel(), 1.0).reshape(SHAPE)
    if isinstance(prox, L2):
        parts = [pyproximal.L2(b=a.ravel()[i : i + 1], sigma=t.ravel()[i]) for i in range(a.size)]
        return np.array([part.prox(r.ravel()[i : i + 1], 1.0)[0] for i, part in enumerate(parts)]).reshape(SHAPE)
    if isinstance(prox, ElasticNet):
        # prox of f + c/2 |.|^2 at v is the prox of f / (1 + c) at v / (1 + c)
        shrink = 1 + t * (1 - prox.mix)
        soft = pyproximal.L1(sigma=(t * prox.mix / shrink).ravel())
        return a + soft.prox(((r - a) / shrink).ravel(), 1.0).reshape(SHAPE)
    if isinstance(prox, GroupL1):
        columns = [
            pyproximal.L21(ndim=len(dg), sigma=max(np.linalg.norm(tg), 1e-300)).prox(dg, 1.0)
            for dg, tg in zip(groups_of(prox, r - a), groups_of(prox, t))
        ]
        return a + (np.array(columns) if prox.dim == 0 else np.array(columns).T)
    return pyproximal.Box(lower=(a - t).ravel(), upper=(a + t).ravel()).prox(r.ravel(), 1.0).reshape(SHAPE)


@every
@some
@given(r=points, a=points, t=thresholds)
def test_agrees_with_pyproximal(prox, r, a, t):
    np.testing.assert_allclose(apply(prox, r, a, t), by_pyproximal(prox, r, a, t), rtol=1e-10, atol=1e-10)


@every
@settings(max_examples=4, deadline=None)
@given(r=points, a=points, t=thresholds)
def test_no_minimiser_finds_a_lower_value(prox, r, a, t):
    """The objective is 1-strongly convex: a value within eps of the minimum is taken within sqrt(2 eps) of it."""
    ours = apply(prox, r, a, t)
    if isinstance(prox, Box):
        assert np.all(np.abs(ours - a) <= t + 1e-12 * np.abs(a))
        for i in np.ndindex(*SHAPE):
            low, high = a[i] - t[i], a[i] + t[i]
            if high > low:
                best = minimize_scalar(lambda w, i=i: (w - r[i]) ** 2 / 2, bounds=(low, high), method="bounded")
                assert (ours[i] - r[i]) ** 2 / 2 <= best.fun + 1e-8 * (1 + best.fun)
        return

    def objective(d):
        d = d.reshape(SHAPE)
        return penalty(prox, d, t) + np.sum((a + d - r) ** 2) / 2

    value = objective(ours - a)
    starts = [np.zeros(a.size), (r - a).ravel(), (ours - a).ravel()]
    best = min(minimize(objective, start, method="L-BFGS-B").fun for start in starts)
    assert value <= best + 1e-8 * (1 + abs(best))


@every
@some
@given(r=points, q=points, a=points, t=thresholds)
def test_firmly_non_expansive(prox, r, q, a, t):
    """|p - p'|^2 <= <p - p', r - q>."""
    step = apply(prox, r, a, t) - apply(prox, q, a, t)
    assert np.sum(step**2) <= np.sum(step * (r - q)) + 1e-9 * (1 + np.sum((r - q) ** 2))


def conjugate(prox, d, t):
    """The prox of the penalty's convex conjugate, worked out by hand."""
    if isinstance(prox, L1):
        return np.clip(d, -t, t)
    if isinstance(prox, L2):
        return d * t / (1 + t)
    if isinstance(prox, ElasticNet):
        bound, curve = t * prox.mix, t * (1 - prox.mix)
        return np.where(np.abs(d) <= bound, d, np.sign(d) * (np.abs(d) * curve + bound) / (1 + curve))
    if isinstance(prox, Box):  # the conjugate of a box's indicator is a weighted L1 norm
        return np.sign(d) * np.maximum(np.abs(d) - t, 0)
    balls = []
    for dg, tg in zip(groups_of(prox, d), groups_of(prox, t)):
        size, radius = np.linalg.norm(dg), np.linalg.norm(tg)
        balls.append(dg if size <= radius else dg * radius / size)
    return np.array(balls) if prox.dim == 0 else np.array(balls).T


@every
@some
@given(d=points, t=thresholds)
def test_moreau(prox, d, t):
    """prox of f plus prox of f* is the identity (about an anchor of zero)."""
    total = apply(prox, d, np.zeros(SHAPE), t) + conjugate(prox, d, t)
    np.testing.assert_allclose(total, d, rtol=1e-12, atol=1e-10)


def bits(values):
    return torch.as_tensor(values, dtype=torch.float32).contiguous().view(torch.int32)


single = hnp.arrays(np.float32, SHAPE, elements=st.floats(-1e6, 1e6, width=32))


@every
@some
@given(a=single, t=st.sampled_from([0.0, 1e-3, 7.0, math.inf]))
def test_the_anchor_is_a_fixed_point_bit_for_bit(prox, a, t):
    anchor = torch.from_numpy(a)
    assert torch.equal(bits(prox(anchor.clone(), anchor, torch.full(SHAPE, t))), bits(anchor))


@every
@some
@given(r=single, a=single)
def test_threshold_zero_and_infinity(prox, r, a):
    """One of the two is the identity, the other holds every weight: a box is narrow where a penalty is strong."""
    r, a = torch.from_numpy(r), torch.from_numpy(a)
    free, held = (math.inf, 0.0) if isinstance(prox, Box) else (0.0, math.inf)
    assert torch.equal(bits(prox(r, a, torch.full(SHAPE, held))), bits(a))
    assert torch.equal(bits(prox(r, a, held)), bits(a))  # a plain number is a threshold too
    moved = prox(r, a, torch.full(SHAPE, free))
    if isinstance(prox, L1 | Box):
        assert torch.equal(moved, r)
    else:  # these scale r - a, which rounds once
        torch.testing.assert_close(moved, r, rtol=1e-6, atol=float(a.abs().max()) * 2e-7)


@pytest.mark.parametrize("prox", SELECTING, ids=repr)
@some
@given(r=single, a=single, t=hnp.arrays(np.float32, SHAPE, elements=st.floats(0, 1e6, width=32)))
def test_what_the_threshold_holds_is_the_anchor_bit_for_bit(prox, r, a, t):
    r, a, t = torch.from_numpy(r), torch.from_numpy(a), torch.from_numpy(t)
    d = (r - a).abs()
    if isinstance(prox, GroupL1):
        other = 1 - prox.dim
        # Norms are rounded: what lies on the threshold to seven digits may be on either side of it.
        bound = t.double().norm(dim=other, keepdim=True) * (1 - 1e-6)
        held = (d.double().norm(dim=other, keepdim=True) <= bound).expand(SHAPE)
    else:
        held = d <= t * getattr(prox, "mix", 1.0)
    out = prox(r, a, t)
    assert torch.equal(bits(out[held]), bits(a[held]))


def test_values_by_hand():
    a, r = torch.tensor([1.0, 1.0, 1.0, -2.0]), torch.tensor([1.5, 0.75, 4.0, -6.0])
    t = torch.tensor([0.5, 0.5, 1.0, 1.0])
    assert L1()(r, a, t).tolist() == [1.0, 1.0, 3.0, -5.0]
    assert L2()(r, a, torch.tensor([1.0, 1.0, 2.0, 3.0])).tolist() == [1.25, 0.875, 2.0, -3.0]
    # mix 1/2: d = 3 and -4, bound 1/2, shrink 3/2
    assert ElasticNet(0.5)(r, a, t)[2:].tolist() == pytest.approx([1 + 2.5 / 1.5, -2 - 3.5 / 1.5])
    assert Box()(r, a, t).tolist() == [1.5, 0.75, 2.0, -3.0]
    # rows (3, 4) and (0.3, 0.4) about zero, equal thresholds 1: each group's weight is sqrt(2)
    rows = torch.tensor([[3.0, 4.0], [0.3, 0.4]], dtype=torch.float64)
    out = GroupL1()(rows, torch.zeros_like(rows), torch.ones_like(rows))
    shrink = 1 - math.sqrt(2) / 5
    torch.testing.assert_close(out, torch.tensor([[3 * shrink, 4 * shrink], [0, 0]], dtype=torch.float64))


def test_groups_are_filters_of_a_convolution_and_entries_of_a_vector():
    torch.manual_seed(0)
    a, r = torch.randn(5, 3, 2, 2), torch.randn(5, 3, 2, 2)
    t = torch.full_like(a, 0.4)
    flat = GroupL1()(r.reshape(5, -1), a.reshape(5, -1), t.reshape(5, -1)).reshape(a.shape)
    torch.testing.assert_close(GroupL1()(r, a, t), flat)
    for prox in (GroupL1(), GroupL1(dim=1)):
        torch.testing.assert_close(prox(r[0, 0, 0], a[0, 0, 0], t[0, 0, 0]), L1()(r[0, 0, 0], a[0, 0, 0], t[0, 0, 0]))
        torch.testing.assert_close(prox(r[0, 0, 0, 0], a[0, 0, 0, 0], 0.4), L1()(r[0, 0, 0, 0], a[0, 0, 0, 0], 0.4))


def test_thresholds_the_optimizer_asks_for():
    importance = torch.tensor([0.0, 0.5, 2.0])
    assert per_step_threshold(0.5, 4.0, importance).tolist() == [0.0, 1.0, 4.0]
    assert per_step_threshold(0.5, math.inf, importance).tolist() == [math.inf] * 3
    # a box has no step size, and is narrower where importance is larger
    assert Box.threshold(0.5, 4.0, importance).tolist() == [math.inf, 0.5, 0.125]
    assert Box.threshold(0.5, math.inf, importance).tolist() == [0.0] * 3
    assert Box.threshold(0.5, 0.0, importance).tolist() == [math.inf] * 3


def test_penalties_by_hand():
    """w - anchor = [[3, 4], [0, -1]] with weights [[1, 2], [inf, 5]]; an infinite weight on no drift costs nothing."""
    w = torch.tensor([[4.0, 5.0], [1.0, 0.0]])
    anchor, weight = torch.ones(2, 2), torch.tensor([[1.0, 2.0], [math.inf, 5.0]])
    assert float(L1().penalty(w, anchor, weight)) == 3 + 8 + 0 + 5
    assert float(L2().penalty(w, anchor, weight)) == 4.5 + 16 + 0 + 2.5
    assert float(ElasticNet(0.25).penalty(w, anchor, weight)) == 0.25 * 16 + 0.75 * 23
    # rows: |(1, 2)| |(3, 4)| + |(3, 5)| |(0, -1)|
    rows = GroupL1().penalty(w, anchor, torch.tensor([[1.0, 2.0], [3.0, 5.0]]))
    assert float(rows) == pytest.approx(math.sqrt(5) * 5 + math.sqrt(34))
    assert float(Box().penalty(w, anchor, torch.tensor(4.0))) == 0
    assert float(Box().penalty(w, anchor, torch.tensor(3.9))) == math.inf


def test_the_optimizers_penalty_leaves_gamma_out():
    w, anchor, importance = torch.tensor([2.0, -1.0]), torch.zeros(2), torch.tensor([1.0, 3.0])
    # 0.5 * (1.5 * 2 + 3.5 * 1), with the importance damped by 0.5
    assert Penalty(L1(), 0.01, 0.5, 0.5).value(w, anchor, importance) == pytest.approx(3.25)
    assert math.isnan(Penalty(lambda r, a, t: a, 0.1, 1.0).value(w, anchor, importance))


def test_names():
    assert [resolve(name) for name in ("l1", "l2", "elastic", "group", "box")] == [
        L1(),
        L2(),
        ElasticNet(0.5),
        GroupL1(),
        Box(),
    ]
    with pytest.raises(ValueError, match=r"mix is 1.5.*\[0, 1\]"):
        ElasticNet(1.5)
    with pytest.raises(ValueError, match=r"dim is 3.*\(2, 2\)"):
        GroupL1(dim=3)(torch.ones(2, 2), torch.zeros(2, 2), 1.0)


@pytest.mark.parametrize("splitting", ["douglas-rachford", "forward-backward"])
def test_a_prox_of_ones_own(splitting):
    """Half way back to the anchor, whatever the importance: z = a + (r - a) / 2 by hand."""
    model = nn.Linear(3, 2, bias=False).double()
    data = [(torch.randn(6, 3).double(), torch.randint(2, (6,)))]

    def half(r, anchor, threshold):
        assert threshold.shape == r.shape
        return anchor + (r - anchor) / 2

    opt = drcl.DRCL(model.named_parameters(), lr=0.25, strength=10.0, prox=half, splitting=splitting)
    opt.consolidate(model, data)
    a, g = model.weight.detach().clone(), torch.randn(2, 3).double()
    model.weight.grad = g.clone()
    opt.step()
    reach = 0.5 if splitting == "douglas-rachford" else 0.25
    z = a - reach * g / 2
    torch.testing.assert_close(model.weight.detach(), z + 0.25 * g if reach == 0.5 else z)
    with opt.deployed():
        torch.testing.assert_close(model.weight.detach(), z)


@pytest.mark.parametrize("name", ["l1", "l2", "elastic", "group", "box"])
def test_every_named_prox_trains_and_holds_at_infinite_strength(name):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    data = [(torch.randn(16, 4), torch.randint(3, (16,)))]
    opt = drcl.DRCL(model.named_parameters(), lr=0.05, strength=math.inf, prox=name, splitting="douglas-rachford")
    opt.consolidate(model, data)
    before = [p.detach().clone() for p in model.parameters()]
    for _ in range(3):
        opt.zero_grad()
        nn.functional.cross_entropy(model(data[0][0]), data[0][1]).backward()
        opt.step()
    with opt.deployed():
        assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before))
