"""Small networks and tasks, and what it takes to say that nothing changed."""

import copy
import itertools
import math

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from drcl import DRCL, Fisher


def mlp(seed=0, sizes=(6, 16, 3)):
    torch.manual_seed(seed)
    layers = [m for i, o in itertools.pairwise(sizes) for m in (nn.Linear(i, o), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def task(seed, batches=5, size=8, features=6, classes=3):
    """Separable classes: a fixed random linear rule labels the points."""
    rng = torch.Generator().manual_seed(1000 + seed)
    rule = torch.randn(features, classes, generator=rng)
    points = [torch.randn(size, features, generator=rng) for _ in range(batches)]
    return [(x, (x @ rule).argmax(1)) for x in points]


def closure_on(model, opt, batch):
    def closure():
        opt.zero_grad()
        loss = cross_entropy(model(batch[0].to(next(model.parameters()).dtype)).float(), batch[1])
        loss.backward()
        return loss

    return closure


def fit(model, opt, batches, epochs=1):
    for _ in range(epochs):
        for batch in batches:
            closure_on(model, opt, batch)()
            opt.step()


def after_one_task(model=None, seed=0, **arguments):
    """A model and its optimizer at the start of the second task, or a few steps into it with `then` steps."""
    model = mlp(seed) if model is None else model
    then = arguments.pop("then", 0)
    arguments = {"lr": 0.1, "strength": 0.05, "splitting": "douglas-rachford", **arguments}
    opt = DRCL(model.named_parameters(), **arguments)
    fit(model, opt, task(0)) if opt.solver.splitting != "implicit" else None
    opt.consolidate(model, task(0), Fisher(samples=40))
    for batch in (task(1) * 3)[:then]:
        opt.step(closure_on(model, opt, batch))
    return model, opt


def weights(model):
    return [p.detach().clone() for p in model.parameters()]


def whole_state(model, opt):
    """Everything a refused call must leave alone, copied."""
    kept = {
        "model": model.state_dict(),
        "gradients": {n: p.grad for n, p in model.named_parameters()},
        "training": [m.training for m in model.modules()],
        "optimizer": opt.state_dict(),
        "random": torch.get_rng_state(),
    }
    return copy.deepcopy(kept)


def _equal(a, b):
    return bool(((a == b) | ((a != a) & (b != b))).all())


def same(a, b):
    """Equal bit for bit, through dicts, lists and tuples; NaN equals NaN."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape and _equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b))
    return a == b or (isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b))
