"""A method on a small stream in the real loop, to run to its end or to stop and look at."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import torch

from drcl.lab import methods, networks, streams
from drcl.lab.data.base import DataSet, Split
from drcl.lab.methods.base import Method
from drcl.lab.streams.view import View
from drcl.lab.training.budget import Plan
from drcl.lab.training.learner import Learner
from drcl.lab.training.settings import Training

PLAN = Plan(epochs=2, batch=8, lr=0.05, momentum=0.9)


CHEAP = {"samples": 30}


def stream(scenario: str = "task", tasks: int = 2) -> streams.Stream:
    rng = np.random.default_rng(0)
    patterns = rng.integers(40, 215, (2 * tasks, 1, 8, 8))

    def split(count: int) -> Split:
        labels = np.tile(np.arange(2 * tasks), count)
        images = np.clip(patterns[labels] + rng.normal(0, 12, (len(labels), 1, 8, 8)), 0, 255).astype(np.uint8)
        return Split(images, labels)

    data = DataSet("blobs", split(16), split(10), tuple(map(str, range(2 * tasks))))
    return streams.class_split(data, seed=1, classes_per_task=2, scenario=scenario, view=View((0.5,), (0.25,)))


def make(method: str, **options) -> Method:
    cls = methods.get(method)
    usual = {k: v for k, v in CHEAP.items() if k in {f.name for f in fields(cls)}}
    if method == "mesu":
        usual = {"samples": 4}  # of the weights, a forward and backward pass each
    return cls(**usual | options)


def learner(
    method: Method, on: streams.Stream | None = None, plan: Plan = PLAN, kind: str = "mlp", **training
) -> Learner:
    on = on or stream()
    spec = {"kind": "mlp", "hidden": [10]} if kind == "mlp" else {"kind": kind}
    watcher = training.pop("watcher", None)
    return Learner(on, networks.build(spec, on, seed=5), method, plan, Training(**training), seed=7, watcher=watcher)


def final(made: Learner) -> dict[str, torch.Tensor]:
    made.run()
    return dict(made.model.state_dict())


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


def prepared(name: str, tasks: int = 1, scenario: str = "domain", **options):
    """A method after some tasks, its weights then moved away from where it left them."""
    made = learner(make(name, **options), stream(scenario, tasks))
    made.run()
    start = {n: p.detach().clone() for n, p in made.model.named_parameters()}
    return made, start
