"""The stability term an optimizer reports, against the penalty written out."""

import math

import pytest
import torch
from tests.tasks import after_one_task, mlp, task
from torch import nn

import drcl
from drcl.directions.coordinates import Coordinates
from drcl.prox import Penalty, resolve


def moved(opt: drcl.DRCL, size: float = 0.1) -> None:
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for group in opt.param_groups:
            for p in group["params"]:
                p.add_(size * torch.randn(p.shape, generator=generator))


@pytest.mark.parametrize(("prox", "term"), [("l1", lambda d: d.abs()), ("l2", lambda d: d.square() / 2)])
def test_single_weights(prox, term):
    """Each group with its own strength; free parameters do not count; at the anchor it is nothing."""
    model = mlp()
    first, last = list(model.named_parameters())[:2], list(model.named_parameters())[2:]
    opt = drcl.DRCL(
        [{"params": first, "strength": 2.0}, {"params": last[:-1]}, {"params": last[-1:], "free": True}],
        lr=0.1,
        strength=0.5,
        damping=0.25,
        prox=prox,
    )
    assert opt.penalty() == 0
    opt.consolidate(model, task(0))
    assert opt.penalty() == 0
    moved(opt)
    expected = 0.0
    for p, state in opt.protected():
        strength = 2.0 if any(p is q for _, q in first) else 0.5
        expected += strength * float(((state["importance"] + 0.25) * term(p.detach() - state["anchor"])).sum())
    assert opt.penalty() == pytest.approx(expected, rel=1e-5)


def test_directions_against_the_quadratic_form_written_out():
    """strength/2 * d' (sum of e u u') d over all directions u of a layer, the bias as a last column."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    opt = drcl.DRCL(model.named_parameters(), lr=0.1, preset="directions", strength=0.7)
    x = torch.randn(64, 4)
    opt.consolidate(model, [(x, torch.randint(3, (64,)))])
    before = [p.detach().clone() for p in model.parameters()]
    moved(opt)
    basis = opt.progress.layers[model.weight].basis
    d = torch.cat([model.weight - before[0], (model.bias - before[1])[:, None]], 1).detach().double()
    form = torch.zeros(15, 15, dtype=torch.float64)
    for j in range(3):
        for k in range(5):
            u = torch.kron(basis.outputs[0, :, j].double(), basis.inputs[0, :, k].double())
            form += float(basis.eigenvalues[0, 0, j, k]) * torch.outer(u, u)
    assert opt.penalty() == pytest.approx(0.7 / 2 * float(d.flatten() @ form @ d.flatten()), rel=1e-4)


@pytest.mark.parametrize("prox", ["l1", "l2", "elastic"])
def test_cut_bases_are_penalised_as_their_prox_says(prox):
    """The prox minimises penalty + |w - r|^2 / (2 gamma): no step away from it is lower."""
    torch.manual_seed(1)
    model = nn.Linear(12, 9)
    opt = drcl.DRCL(model.named_parameters(), lr=0.1, preset="directions", prox=prox)
    x = torch.randn(64, 12)
    opt.consolidate(model, [(x, torch.randint(9, (64,)))], importance=drcl.Kronecker(rank=3))
    basis = opt.progress.layers[model.weight].basis
    assert not basis.complete
    gamma, strength = 0.3, 2.0 / float(basis.eigenvalues.mean())
    penalty = Penalty(resolve(prox), gamma, strength)
    r = torch.randn(1, 1, 9, 13)

    def objective(d: torch.Tensor) -> float:
        return Coordinates(basis, d.clone()).penalty(penalty) + float((d - r).double().square().sum()) / (2 * gamma)

    z = Coordinates(basis, r.clone()).settled(penalty)
    best = objective(z)
    for seed in range(50):
        away = torch.randn(r.shape, generator=torch.Generator().manual_seed(seed))
        for size in (1e-3, 1e-2, 1e-1):
            assert objective(z + size * away) >= best - 1e-6 * abs(best)


def test_what_cannot_be_told_is_nan():
    _, opt = after_one_task(strength=0.1, prox=lambda r, anchor, threshold: anchor)
    assert math.isnan(opt.penalty())
    _, opt = after_one_task(stable=0.5)
    moved(opt)
    assert math.isnan(opt.penalty())
