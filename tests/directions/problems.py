"""Small networks, data and oracles that the tests of directions share."""

import torch
from tests.tasks import fit
from torch import nn
from torch.nn import functional as F

from drcl import DRCL, Kronecker
from drcl.directions.basis import Eigenbasis


def everything(model):
    return dict(model.named_parameters())


def measured(model, data, history=None, **options):
    return Kronecker(**options).measure(model, data, everything(model), history=history)


def operator(basis):
    """The importance as a full matrix over the entries of [weight bias], row by row; one group, one position."""
    u = torch.eye(basis.input_factor.shape[1]).double() if basis.inputs is None else basis.inputs[0].double()
    v = torch.eye(basis.output_factor.shape[1]).double() if basis.outputs is None else basis.outputs[0].double()
    directions = torch.kron(v, u)
    return directions @ torch.diag(basis.eigenvalues[0, 0].double().flatten()) @ directions.T


def gradients(model, x, weight, bias, classes):
    """For every sample and label: its probability and the gradient of -log p as a row over [weight bias]."""
    for i in range(len(x)):
        for k in range(classes):
            logits = model(x[i : i + 1])
            p = logits.detach().softmax(1)[0, k]
            wanted = [weight] if bias is None else [weight, bias]
            g = torch.autograd.grad(F.cross_entropy(logits, torch.tensor([k])), wanted)
            rows = g[0].flatten(1)
            yield p, rows if bias is None else torch.cat([rows, g[1][:, None]], 1)


def projectors(u):
    """On each column, and on what all of them leave out."""
    found = [torch.outer(c, c) for c in u.T]
    return found if u.shape[0] == u.shape[1] else [*found, torch.eye(len(u)).to(u) - u @ u.T]


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


def random_basis(generator, j, k, size=(4, 5), groups=1, positions=1):
    """j of the outputs and k of the inputs of a layer kept separately, each with a random importance; a bias."""
    m, n = size
    q = [torch.linalg.qr(torch.randn(groups, l, l, generator=generator).double())[0] for l in (n, m)]
    f = torch.rand(groups, positions, j + (j < m), k + (k < n), generator=generator).double()
    factors = (torch.eye(l).double().repeat(groups, 1, 1) for l in (n, m))
    return Eigenbasis(q[0][..., :k].contiguous(), q[1][..., :j].contiguous(), f, *factors, bias=True)
