"""The proximal map of a product of thin factors, against a computation with the whole matrix in weight space."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from drcl.directions.basis import Eigenbasis
from drcl.directions.factors import basis_of
from drcl.directions.lowrank import Product, Side
from drcl.prox import L1, L2, ElasticNet, Penalty

M, N, RANK, SCALE, STRENGTH, DAMPING = 7, 9, 2, 1.5, 0.8, 0.1


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


STEPS = random(M, RANK, seed=7).abs() + 0.1, random(N, RANK, seed=8).abs() + 0.1  # at each weight


def basis(kept=None, rotated=(True, True)):
    """Directions of random factors with eigenvalues that are no product of two."""
    x, d = random(30, N, seed=1), random(30, M, seed=2)
    a, g = (x.mT @ x)[None], (d.mT @ d)[None]
    made = basis_of(
        a if rotated[0] else a.diagonal(dim1=1, dim2=2),
        g if rotated[1] else g.diagonal(dim1=1, dim2=2),
        kept,
        1,
        False,
        1.0,
    )
    values = random(*made.eigenvalues.shape, seed=3).square()
    return Eigenbasis(made.inputs, made.outputs, values, made.input_factor, made.output_factor, False)


def quadratic(found):
    """The importance as a matrix over all weights of the product, row by row: made from its definition."""
    (j, k), values = found.kept, found.eigenvalues[0, 0] + DAMPING
    u = torch.eye(N, dtype=torch.float64) if found.inputs is None else found.inputs[0]
    v = torch.eye(M, dtype=torch.float64) if found.outputs is None else found.outputs[0]
    rest_in, rest_out = torch.eye(N, dtype=torch.float64) - u @ u.mT, torch.eye(M, dtype=torch.float64) - v @ v.mT
    whole = torch.zeros(M * N, M * N, dtype=torch.float64)
    for r in range(values.shape[0]):
        left = torch.outer(v[:, r], v[:, r]) if r < j else rest_out
        for c in range(values.shape[1]):
            right = torch.outer(u[:, c], u[:, c]) if c < k else rest_in
            whole += values[r, c] * torch.kron(left, right)
    return whole


def points():
    """Where both factors started, what is proposed, the anchor."""
    near = [(0.3 * random(M, RANK, seed=10 + i), 0.3 * random(N, RANK, seed=20 + i)) for i in range(3)]
    middle = random(M, RANK, seed=30), random(N, RANK, seed=31)
    return [(middle[0] + b, middle[1] + a) for b, a in near]


def solved(found, prox, gammas, rounds=250):
    start, asked, anchor = points()
    rows, columns = (
        Side(found.outputs, start[0], asked[0], anchor[0]),
        Side(found.inputs, start[1], asked[1], anchor[1]),
    )
    for side, gamma, shape in ((rows, gammas[0], (M, RANK)), (columns, gammas[1], (N, RANK))):
        if gamma is not None:
            side.steps(1 / torch.as_tensor(gamma, dtype=torch.float64).expand(shape))
    made = Product(found, SCALE, rows, columns)
    made.settle(Penalty(prox, 1.0, STRENGTH, DAMPING), rounds)
    return rows.now, columns.now, made


@pytest.mark.parametrize("metric", ["uniform", "differs"])
@pytest.mark.parametrize("rotated", [(True, True), (False, True), (False, False)])
@pytest.mark.parametrize("kept", [None, 3])
def test_it_minimises_the_penalty_of_the_whole_matrix(kept, rotated, metric):
    found = basis(kept, rotated)
    importance, (_, asked, anchor) = quadratic(found), points()
    gammas = (0.3, 0.7) if metric == "uniform" else (STEPS[0], STEPS[1])

    def objective(flat):
        b, a = (torch.tensor(part.reshape(-1, RANK), requires_grad=True) for part in np.split(flat, [M * RANK]))
        drift = (SCALE * (b @ a.mT - anchor[0] @ anchor[1].mT)).flatten()
        value = ((b - asked[0]).square() / gammas[0]).sum() / 2 + ((a - asked[1]).square() / gammas[1]).sum() / 2
        value = value + STRENGTH / 2 * drift @ importance @ drift
        value.backward()
        return value.item(), np.concatenate([b.grad.flatten().numpy(), a.grad.flatten().numpy()])

    b, a, made = solved(found, L2(), gammas)
    ours = np.concatenate([b.flatten().numpy(), a.flatten().numpy()])
    value, slope = objective(ours)
    assert np.abs(slope).max() < 1e-5  # a stationary point of the problem in weight space
    # and no worse than what a general minimiser finds from the same start
    start = np.concatenate([t.flatten().numpy() for t in points()[0]])
    best = minimize(objective, start, jac=True, method="BFGS", options={"gtol": 1e-9, "maxiter": 5000})
    assert value == pytest.approx(best.fun, rel=1e-9)
    assert np.abs(ours - best.x).max() < 1e-4
    drift = (SCALE * (b @ a.mT - anchor[0] @ anchor[1].mT)).flatten()
    expected = float(STRENGTH / 2 * drift @ importance @ drift)
    assert made.penalty(Penalty(L2(), 1.0, STRENGTH, DAMPING)) == pytest.approx(expected)


def test_with_the_whole_rank_it_is_the_prox_of_the_matrix():
    """One factor fixed at the identity: the other is the matrix itself, and the map that of a layer with directions."""
    found, asked, anchor = basis(), random(M, N, seed=5), random(M, N, seed=6)
    eye, gamma = torch.eye(N, dtype=torch.float64), 0.4
    rows, columns = Side(found.outputs, asked, asked, anchor), Side(found.inputs, eye, eye, eye)
    rows.steps(torch.full((M, N), 1 / gamma, dtype=torch.float64))
    made = Product(found, 1.0, rows, columns)
    made.settle(Penalty(L2(), 1.0, STRENGTH, DAMPING), 1)
    drift = found.rotate((asked - anchor)[None, None])
    shrunk = drift / (1 + gamma * STRENGTH * (found.eigenvalues + DAMPING))
    assert torch.allclose(rows.now, anchor + found.rotate_back(shrunk)[0, 0])


@pytest.mark.parametrize("kept", [None, 3])
@pytest.mark.parametrize("prox", [L1(), ElasticNet(0.6)])
def test_absolute_values(prox, kept):
    """One factor alone is a convex problem: nothing near the solution is better."""
    found, (_, asked, anchor), gamma = basis(kept), points(), 0.3
    b, a, _ = solved(found, prox, (gamma, None), 150)
    start = points()[0]
    assert torch.allclose(a, start[1])
    rows = Side(found.outputs, b, b, anchor[0])
    columns = Side(found.inputs, start[1], start[1], anchor[1])

    def value(factor):
        rows.now = factor
        penalty = Product(found, SCALE, rows, columns).penalty(Penalty(prox, 1.0, STRENGTH, DAMPING))
        return float((factor - asked[0]).square().sum()) / (2 * gamma) + penalty

    best, rng = value(b), torch.Generator().manual_seed(0)
    for size in (1e-1, 1e-2, 1e-3):
        for _ in range(50):
            step = size * torch.randn(b.shape, generator=rng, dtype=b.dtype)
            assert value(b + step) >= best - 1e-4


def test_any_number_of_rounds_rests_where_loss_and_penalty_balance():
    """From x = y - gamma * gradient, with the gradient that balances the penalty at y, nothing moves."""
    found, (start, _, anchor) = basis(kept=3), points()
    b, a = (t.clone().requires_grad_() for t in start)
    drift = (SCALE * (b @ a.mT - anchor[0] @ anchor[1].mT)).flatten()
    (STRENGTH / 2 * drift @ quadratic(found) @ drift).backward()
    for gamma in (0.05, 2.0):
        rows = Side(found.outputs, start[0], start[0] + gamma * b.grad, anchor[0])
        columns = Side(found.inputs, start[1], start[1] + gamma * a.grad, anchor[1])
        for side in (rows, columns):
            side.steps(torch.full((len(side.now), RANK), 1 / gamma, dtype=torch.float64))
        Product(found, SCALE, rows, columns).settle(Penalty(L2(), 1.0, STRENGTH, DAMPING), 1)
        assert torch.allclose(rows.now, start[0])
        assert torch.allclose(columns.now, start[1])


def test_a_factor_of_zeros_and_directions_that_leave_nothing_out():
    found, zero = basis(kept=3), torch.zeros(M, RANK, dtype=torch.float64)
    inside = found.inputs[0] @ random(3, RANK, seed=4)
    rows, columns = Side(found.outputs, zero, zero, zero), Side(found.inputs, inside, inside, inside)
    for side in (rows, columns):
        side.steps(torch.ones(len(side.now), RANK, dtype=torch.float64))
    Product(found, SCALE, rows, columns).settle(Penalty(L2(), 1.0, STRENGTH))
    assert torch.allclose(rows.now, zero)
    assert torch.allclose(columns.now, inside)
