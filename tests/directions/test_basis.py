"""An eigenbasis against the operator it stands for, written out as a matrix over all weights."""

import itertools
from dataclasses import replace

import pytest
import torch
from tests.directions.problems import measured, projectors, random_basis
from torch import nn

from drcl.directions import basis as basis_module
from drcl.directions.basis import Eigenbasis, as_matrix, as_weight, bias_of, eigenvectors


@pytest.mark.parametrize("n", [7, 60])
def test_directions_are_orthonormal(n):
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(n, 2 * n), nn.ReLU(), nn.Linear(2 * n, 3))
    for options in ({}, {"rank": 3}):
        for basis in measured(model, [(torch.randn(32, n), None)], **options).bases.values():
            for u in (basis.inputs, basis.outputs):
                assert float((u.mT @ u - torch.eye(u.shape[-1])).abs().max()) < 1e-5


def test_rank_keeps_the_largest():
    torch.manual_seed(5)
    model = nn.Linear(6, 3, bias=False).double()
    # Orthogonal inputs of squared lengths 60, 25, 10, 5: eigenvalues of A known without any decomposition.
    x = torch.zeros(4, 6).double()
    x[range(4), range(4)] = torch.tensor([60.0, 25.0, 10.0, 5.0]).double().sqrt()
    for rank, kept in ((1, 1), (2, 2), (3, 3), (4, 6), (None, 6)):
        basis = measured(model, [(x, None)], rank=rank).bases["weight"]
        assert basis.inputs.shape[-1] == kept
        few = min(kept, 4)
        torch.testing.assert_close(basis.inputs[0, :few, :few].abs(), torch.eye(few).double())
        assert basis.complete == (kept == 6 and basis.outputs.shape[-1] == 3)


@pytest.mark.parametrize("cut", [(2, 3), (4, 3), (2, 5)])
@pytest.mark.parametrize("before", [(3, 2), (4, 2), (3, 5), (4, 5)])
def test_importance_goes_from_one_cut_basis_to_another_as_the_full_operator_would(before, cut):
    """Against the operator written out: its mean quadratic form over each block of the new directions."""
    generator = torch.Generator().manual_seed(0)
    old, new = random_basis(generator, *before), random_basis(generator, *cut)
    pairs = itertools.product(enumerate(projectors(old.outputs[0])), enumerate(projectors(old.inputs[0])))
    whole = sum(old.eigenvalues[0, 0, i, l] * torch.kron(p, q) for (i, p), (l, q) in pairs)
    wanted = torch.tensor(
        [
            [
                float(torch.trace(whole @ torch.kron(p, q)) / torch.trace(torch.kron(p, q)))
                for q in projectors(new.inputs[0])
            ]
            for p in projectors(new.outputs[0])
        ]
    )
    torch.testing.assert_close(old.seen_in(new)[0, 0], wanted.double())
    weight, bias = old.diagonal()
    torch.testing.assert_close(torch.cat([weight, bias[..., None]], -1).flatten(), whole.diagonal())
    seen = replace(new, eigenvalues=new.see(torch.cat([weight, bias[..., None]], -1)))
    assert seen.total == pytest.approx(old.total)
    assert replace(new, eigenvalues=old.seen_in(new)).total == pytest.approx(old.total)


def rng():
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("cut", [(4, 5), (2, 3), (4, 1), (1, 5)])
def test_rotations_are_products_with_the_directions(cut):
    """U_G^T D U_A is (U_G (x) U_A)^T vec(D), for every group and position; back and forth it is a projection."""
    basis = random_basis(rng(), *cut, groups=2, positions=3)
    d = torch.randn(2, 3, 4, 5, generator=rng()).double()
    along = basis.rotate(d)
    for g, s in itertools.product(range(2), range(3)):
        directions = torch.kron(basis.outputs[g], basis.inputs[g])
        torch.testing.assert_close(along[g, s].flatten(), directions.T @ d[g, s].flatten())
        torch.testing.assert_close(basis.rotate_back(along)[g, s].flatten(), directions @ along[g, s].flatten())
    torch.testing.assert_close(basis.rotate(basis.rotate_back(along)), along)
    if basis.complete:
        torch.testing.assert_close(basis.rotate_back(along), d)


def test_a_side_that_is_not_rotated_is_left_as_it_is():
    basis, d = random_basis(rng(), 4, 5), torch.randn(1, 1, 4, 5, generator=rng()).double()
    for inputs, outputs in ((None, basis.outputs), (basis.inputs, None), (None, None)):
        one = replace(basis, inputs=inputs, outputs=outputs)
        u = torch.eye(5).double() if inputs is None else inputs[0]
        v = torch.eye(4).double() if outputs is None else outputs[0]
        torch.testing.assert_close(one.rotate(d)[0, 0], v.T @ d[0, 0] @ u)
        torch.testing.assert_close(one.rotate_back(one.rotate(d)), d)
        assert one.complete
        assert one.kept == one.size == (4, 5)


@pytest.mark.parametrize("cut", [(4, 5), (2, 3), (4, 1)])
def test_counts_add_up_to_all_directions(cut):
    basis = random_basis(rng(), *cut, groups=2, positions=3)
    out, into = basis.counts()
    assert (out.sum(), into.sum()) == (4, 5)
    assert basis.directions == 6 * cut[0] * cut[1]
    assert basis.directions + basis.left_out == 6 * 20
    expanded = basis.eigenvalues * out[:, None] * into
    assert basis.total == pytest.approx(float(expanded.sum()))
    assert basis.scaled(3.0).total == pytest.approx(3 * basis.total)
    assert basis.floats == sum(t.numel() for t in basis.tensors().values())


@pytest.mark.parametrize(("shape", "groups", "positions"), [((6, 4), 1, 1), ((6, 2, 3, 2), 2, 1), ((6, 2, 3, 2), 2, 6)])
def test_matrices_and_weights_are_the_same_numbers(shape, groups, positions):
    weight = torch.randn(shape, generator=rng())
    matrix = as_matrix(weight, groups, positions)
    assert torch.equal(as_weight(matrix, weight), weight)
    for o, i in itertools.product(range(shape[0]), range(shape[1])):
        rest = weight[o, i].flatten()
        row = matrix[o // (shape[0] // groups), :, o % (shape[0] // groups)]
        if positions == 1:
            assert torch.equal(row[0, i * len(rest) : (i + 1) * len(rest)], rest)
        else:
            assert torch.equal(row[:, i], rest)


def test_differences_have_the_bias_as_a_last_column():
    basis = random_basis(rng(), 4, 5)
    w, a, b, c = (torch.randn(s, generator=rng()).double() for s in ((4, 4), (4, 4), (4,), (4,)))
    whole = basis.difference((w, a), (b, c))
    torch.testing.assert_close(whole[0, 0], torch.cat([w - a, (b - c)[:, None]], 1))
    assert not basis.difference((w, a), None)[..., -1].any()
    without = replace(basis, bias=False)
    assert without.difference((w, a), None).shape == (1, 1, 4, 4)
    assert (bias_of("layer.weight"), bias_of("weight")) == ("layer.bias", "bias")


@pytest.mark.parametrize("rank", [None, 2])
def test_eigenvectors_are_those_of_numpys_largest(rank):
    root = torch.randn(2, 5, 5, generator=rng()).double()
    factor = root @ root.mT
    found = eigenvectors(factor, rank)
    assert found.shape == (2, 5, rank or 5)
    for f, u in zip(factor, found):
        values = torch.linalg.eigvalsh(f).flip(0)[: u.shape[1]]
        torch.testing.assert_close(f @ u, u * values)
    assert eigenvectors(torch.zeros(1, 3, 3), None).isfinite().all()


def test_eigenvectors_of_long_sides_carry_what_the_best_would():
    """Within half a per cent of the factor's trace, where its eigenvalues fall slowly, as 1, 1/2, 1/3, ..."""
    n, kept = basis_module.LONG, 100
    q = torch.linalg.qr(torch.randn(n, n, generator=rng()).double())[0]
    values = 1 / torch.arange(1, n + 1).double()
    factor = ((q * values) @ q.T)[None].float()
    best = values[:kept].sum() / values.sum()
    found = eigenvectors(factor, kept)
    assert found.shape == (1, n, kept)
    torch.testing.assert_close(found[0].T @ found[0], torch.eye(kept), rtol=0, atol=1e-5)

    def carried(u):
        return float((u[0] * (factor[0] @ u[0])).sum() / values.sum())

    assert best - 0.005 < carried(found) < best + 1e-5
    along = (found[0] * (factor[0] @ found[0])).sum(0)
    assert bool((along.diff() < 1e-4).all())  # largest first
    again = eigenvectors(factor, kept, found)
    assert carried(found) < carried(again) < best + 1e-5  # from the last ones it gets closer
    assert torch.equal(eigenvectors(factor, kept), found)
    # A direction that nothing pointed to before is found.
    new = torch.randn(n, generator=rng().manual_seed(1))
    new /= new.norm()
    turned = eigenvectors(factor + 3 * torch.outer(new, new), kept, found)
    assert float((turned[0].T @ new).square().sum()) > 0.999


def test_what_is_stored_comes_back_and_what_does_not_fit_is_refused():
    basis = random_basis(rng(), 2, 3)
    again = Eigenbasis.restored(basis.tensors(), basis.facts())
    again.check(torch.empty(4, 4))
    assert again.facts() == basis.facts()
    assert all(torch.equal(t, again.tensors()[name]) for name, t in basis.tensors().items())
    copy = basis.cast(torch.empty(0), torch.float32)
    assert all(t.dtype == torch.float32 for t in copy.tensors().values())
    with pytest.raises(ValueError, match="incomplete"):
        Eigenbasis.restored({"inputs": basis.inputs}, basis.facts())
    with pytest.raises(ValueError, match="incomplete"):
        Eigenbasis.restored(basis.tensors(), {"bias": True})
    bad = {
        "does not fit a weight of shape": replace(basis, eigenvalues=basis.eigenvalues[0]),
        "eigenvalues of a Kronecker basis have shape": replace(basis, eigenvalues=basis.eigenvalues[..., :-1, :-1]),
        "inputs of a Kronecker basis have shape": replace(basis, inputs=basis.inputs[:, :-1]),
        "input_factor of a Kronecker basis hold NaN": replace(basis, input_factor=basis.input_factor / 0),
        "eigenvalues of a Kronecker basis must be >= 0": replace(basis, eigenvalues=-basis.eigenvalues),
    }
    for words, wrong in bad.items():
        with pytest.raises(ValueError, match=words):
            wrong.check(torch.empty(4, 4))
    for shape in ((5, 4), (4, 5), (4,)):
        with pytest.raises(ValueError, match="fit"):
            basis.check(torch.empty(shape))
