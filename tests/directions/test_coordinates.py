"""The proximal map along directions: optimal, also where some of them are left out."""

import itertools
from dataclasses import replace

import cvxpy
import numpy as np
import pytest
import torch
from tests.directions.problems import projectors, random_basis
from torch import nn

from drcl import DRCL, Kronecker
from drcl.directions.coordinates import Coordinates
from drcl.prox import ElasticNet, Penalty

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


def blocks(basis, d):
    """D restricted to each direction that is kept and to each block of what is left out, by projectors."""
    for g, s in itertools.product(range(d.shape[0]), range(d.shape[1])):
        pairs = itertools.product(enumerate(projectors(basis.outputs[g])), enumerate(projectors(basis.inputs[g])))
        for (i, p), (l, q) in pairs:
            yield (g, s, i, l), p @ d[g, s] @ q, float(p.trace() * q.trace())


@pytest.mark.parametrize("cut", [(4, 5), (2, 3), (4, 3), (2, 5)])
def test_sizes_and_ratios_are_those_of_projections(cut):
    generator = torch.Generator().manual_seed(0)
    basis = random_basis(generator, *cut, groups=2, positions=3)
    d = torch.randn(2, 3, 4, 5, generator=generator).double()
    penalty = Penalty(ElasticNet(0.5), gamma=0.1, strength=7.0, damping=0.2)
    at = Coordinates(basis, d.clone())
    sizes, ratios = at.sizes(), at.ratios(penalty)
    assert sizes.shape == ratios.shape == basis.eigenvalues.shape
    for where, block, count in blocks(basis, d):
        assert float(sizes[where]) == pytest.approx(float(block.norm()))
        bound = 0.1 * 0.5 * (float(basis.eigenvalues[where]) + 0.2) * count**0.5
        assert float(ratios[where]) == pytest.approx(float(block.norm()) / bound)


@pytest.mark.parametrize("cut", [(4, 5), (2, 3), (4, 3), (2, 5)])
@pytest.mark.parametrize("mix", [0.0, 0.4, 1.0])
def test_groups_and_positions_are_settled_each_for_itself(cut, mix):
    """Block by block: a soft threshold on its length, then a shrinkage, both in closed form."""
    generator = torch.Generator().manual_seed(1)
    basis = random_basis(generator, *cut, groups=2, positions=3)
    d = torch.randn(2, 3, 4, 5, generator=generator).double()
    penalty = Penalty(ElasticNet(mix), gamma=0.1, strength=9.0, damping=0.2)
    expected = torch.zeros_like(d)
    for where, block, count in blocks(basis, d):
        t = 0.1 * 9.0 * (basis.eigenvalues[where] + 0.2)
        left = (1 - t * mix * count**0.5 / block.norm()).clamp(min=0)
        expected[where[:2]] += block * left / (1 + t * (1 - mix))
    torch.testing.assert_close(Coordinates(basis, d.clone()).settled(penalty), expected)


@pytest.mark.parametrize("cut", [(4, 5), (2, 3)])
def test_where_everything_is_held_there_is_nothing_to_add(cut):
    generator = torch.Generator().manual_seed(2)
    basis = random_basis(generator, *cut)
    held = Penalty(ElasticNet(1.0), gamma=0.1, strength=1e9, damping=1.0)
    assert Coordinates(basis, torch.randn(1, 1, 4, 5, generator=generator).double()).settled(held) is None


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("mix", [0.0, 0.5, 1.0])
def test_columns_that_share_the_importance_of_the_tail_need_no_turn(mix, groups):
    """With L2 the map is the same matrix by matrix; the oracle is the map written out with projectors."""
    generator = torch.Generator().manual_seed(4)
    before = random_basis(generator, 2, 4, size=(5, 7), groups=groups)
    basis = before.with_shared_columns(1)
    assert (before.own_columns, basis.own_columns) == (4, 1)
    assert basis.total == pytest.approx(before.total)
    assert before.with_shared_columns(4) is before
    out, into = before.counts()
    weights = before.eigenvalues[..., 2, 1:] * into[1:]
    torch.testing.assert_close(basis.eigenvalues[..., 2, 1], weights.sum(-1) / into[1:].sum())
    assert torch.equal(basis.eigenvalues[..., :2, :], before.eigenvalues[..., :2, :])
    d = torch.randn(groups, 1, 5, 7, generator=generator).double()
    penalty = Penalty(ElasticNet(mix), 0.3, 2.0, 0.1)
    found = Coordinates(basis, d.clone()).settled(penalty)
    for g in range(groups):
        truth = torch.zeros(5, 7).double()
        for row, left in enumerate(projectors(basis.outputs[g])):
            for column, right in enumerate(projectors(basis.inputs[g])):
                part, count = left @ d[g, 0] @ right, float(out[row] * into[column])
                t = 0.3 * 2.0 * (float(basis.eigenvalues[g, 0, row, column]) + 0.1)
                shrunk = max(0.0, 1 - t * mix * count**0.5 / float(part.norm())) / (1 + t * (1 - mix))
                truth += shrunk * part
        torch.testing.assert_close(found[g, 0], truth)
