"""What each method keeps beside the network after two tasks, against the count its equations give by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from tests.lab.methods.loop import toy_stream

from drcl.lab import methods, networks
from drcl.lab.methods import Setting, _bases
from drcl.lab.networks import AlexNet, Heads, Network
from drcl.lab.training.budget import Plan
from drcl.lab.training.learner import Learner
from drcl.lab.training.settings import Training

TASKS = 2


@dataclass(frozen=True)
class Size:
    """Of a network: the inputs and the units of each layer of its trunk, and the numbers of an image. Heads have two
    classes."""

    inputs: tuple[int, ...]
    units: tuple[int, ...]
    image: int
    pairs: int  # of units and inputs, in convolutions of channels

    @property
    def layers(self) -> list[tuple[int, int]]:
        return list(zip(self.inputs, self.units))

    @property
    def weights(self) -> int:
        return sum(d * u for d, u in self.layers)

    @property
    def P(self) -> int:
        return self.weights + sum(self.units)  # every unit has a bias

    @property
    def heads(self) -> int:
        return TASKS * (self.units[-1] * 2 + 2)


SPECS = {"mlp": {"kind": "mlp", "hidden": [40, 30]}, "alexnet": {"kind": "alexnet", "width": 0.05}}
SIZES = {
    "mlp": Size((64, 40), (40, 30), 64, 64 * 40 + 40 * 30),
    # 3, 6 and 13 maps with kernels 4, 3 and 2 on one channel: 32 -> 14 -> 6 -> 2 pixels a side, then twice 102 units
    "alexnet": Size((16, 3 * 9, 6 * 4, 13 * 4, 102), (3, 6, 13, 102, 102), 1024, 3 + 18 + 78 + 52 * 102 + 102**2),
}

# What is kept, in bytes. A number is a float32; an image comes with its label and its head as 8 bytes each.
KEPT: dict[tuple[str, str], Callable[[Size], int]] = {
    ("sgd", ""): lambda n: 0,
    ("joint", ""): lambda n: 0,
    ("l2", ""): lambda n: 4 * n.P,
    ("ewc", "online"): lambda n: 4 * 2 * n.P,
    ("ewc", "averaged"): lambda n: 4 * 2 * n.P,
    ("ewc", "separate"): lambda n: 4 * 2 * n.P * TASKS,
    ("si", ""): lambda n: 4 * 3 * n.P,  # path, importance, anchor
    ("mas", ""): lambda n: 4 * 2 * n.P,
    ("drcl", "forward-backward"): lambda n: 4 * 2 * n.P,  # anchor, importance
    ("drcl", "douglas-rachford"): lambda n: 4 * 3 * n.P,  # and z
    # anchor, importance of each weight and of each direction; of both sides of a layer factor and eigenvectors
    ("drcl-auto", ""): lambda n: 4 * (3 * n.P + sum(2 * (d + 1) ** 2 + 2 * u**2 for d, u in n.layers)),
    ("drcl-kronecker", ""): lambda n: 4 * (3 * n.P + sum(2 * (d + 1) ** 2 + 2 * u**2 for d, u in n.layers)),
    # anchor; the factors of both sides of a layer
    ("kf-laplace", "summed"): lambda n: 4 * (n.P + sum((d + 1) ** 2 + u**2 for d, u in n.layers)),
    ("kf-laplace", "separate"): lambda n: 4 * TASKS * (n.P + sum((d + 1) ** 2 + u**2 for d, u in n.layers)),
    # anchor, information of each direction; of both sides of a layer factor and eigenvectors
    ("ncl", ""): lambda n: 4 * (2 * n.P + sum(2 * (d + 1) ** 2 + 2 * u**2 for d, u in n.layers)),
    ("r-ewc", "patches"): lambda n: 4 * (2 * n.P + sum(2 * (d + 1) ** 2 + 2 * u**2 for d, u in n.layers)),
    ("owm", ""): lambda n: 4 * sum((d + 1) ** 2 for d in n.inputs),  # a projector for the inputs of each layer
    ("spg", ""): lambda n: 4 * n.P,
    ("upgd", ""): lambda n: 4 * (n.P + n.heads),
    ("tag", ""): lambda n: 4 * 2 * n.P * TASKS,
    ("agem", ""): lambda n: 5 * 2 * TASKS * (4 * n.image + 16),
    ("pocl", ""): lambda n: 20 * (4 * n.image + 16),
    ("er", ""): lambda n: 20 * (4 * n.image + 16),
    ("star", ""): lambda n: 20 * (4 * n.image + 16),
    ("der++", ""): lambda n: 20 * (4 * n.image + 16 + 4 * 2),  # and the logits of two classes
    ("lwf", ""): lambda n: 4 * (n.P + n.heads),  # the last network
    ("packnet", ""): lambda n: n.weights,  # one byte a weight: its task
    ("hat", ""): lambda n: 4 * sum(n.units) * (TASKS + 1),  # a row a task, and the largest so far
    ("wsn", ""): lambda n: 4 * n.weights + TASKS * n.weights // 8,  # scores, and one bit a weight and task
    ("ucl", ""): lambda n: 4 * (sum(n.units) + n.P + sum(n.units)),  # sigma a unit; the old weights and sigma
    ("mesu", ""): lambda n: 4 * (n.P + n.heads),  # sigma; the means are the network
    ("evcl", ""): lambda n: 4 * (n.P + 2 * n.P + n.P),  # sigma; the old mean and sigma; Fisher information
    # sigma; the old mean and sigma; offsets of the masks; a, b and alpha of each unit; one bit an entry and task
    ("ibpcl", ""): lambda n: 4 * (3 * n.P + n.pairs + 3 * sum(n.units)) + TASKS * n.pairs // 8,
    # the same with a and b of each layer, now and before the task
    ("ban", ""): lambda n: 4 * (3 * n.P + n.pairs + 4 * len(n.units)) + TASKS * n.pairs // 8,
    ("sb-mcl", ""): lambda n: 8 * 2 * n.units[-1] * 2 * TASKS,  # mean and spread of each class, in double
}
BASES = {"gpm", "sgp", "became", "trgp", "cuber"}  # below: what they keep depends on the data
OPTIONS = {
    **{"agem": {"per_class": 5}, **{name: {"memory": 20} for name in ("er", "star", "der++", "pocl")}},
    **{"mesu": {"samples": 1}, "evcl": {"fisher_samples": 4}},
    **{
        key: {"samples": 4}
        for key in ("ewc", "mas", "drcl", "drcl-auto", "drcl-kronecker", "kf-laplace", "ncl", "r-ewc", "owm")
    },
}
FORMS = {"drcl": "splitting", "r-ewc": "convolutions"}  # which option is meant above; else "kind"


def test_every_method_is_counted():
    assert {name for name, _ in KEPT} | BASES == set(methods.names())


@pytest.mark.parametrize("network", SPECS)
@pytest.mark.parametrize(("name", "kind"), KEPT)
def test_state_bytes_are_what_the_equations_need(name, kind, network):
    stream = toy_stream(tasks=TASKS, per_class=6, side=8 if network == "mlp" else 32)
    model = networks.build(SPECS[network], stream, seed=1)
    size = SIZES[network]
    assert sum(p.numel() for p in model.groups()["trunk"].values()) == size.P
    assert sum(p.numel() for p in model.groups()["heads"].values()) == size.heads
    given = OPTIONS.get(name, {}) | ({FORMS.get(name, "kind"): kind} if kind else {})
    run = Learner(stream, model, methods.get(name)(**given), Plan(steps=2, batch=6, lr=1e-3), Training(), seed=1)
    run.run()
    assert run.cost.state_bytes == pytest.approx(KEPT[name, kind](size), rel=0.1)


@pytest.mark.parametrize("name", sorted(BASES))
def test_projection_keeps_the_directions_of_the_inputs(name):
    """With nearly all energy kept, the rank of all inputs of a layer; the weights hardly move, so they are known."""
    stream = toy_stream(tasks=TASKS, per_class=2)
    model = networks.build({"kind": "mlp", "hidden": [40, 30]}, stream, seed=1)
    trusting = {"epsilon": 0.0, "related": 1} if name == "trgp" else {"epsilon": 1.0} if name == "cuber" else {}
    method = methods.get(name)(threshold=1 - 1e-9, increase=0.0, samples=100, **trusting)
    run = Learner(stream, model, method, Plan(steps=1, batch=4, lr=1e-12), Training(), seed=1)
    run.run()
    x = torch.cat([task.train.take(slice(None))[0] for task in stream]).flatten(1).double().numpy()
    first = {word: p.detach().double().numpy() for word, p in model.trunk.fc1.named_parameters()}
    hidden = np.maximum(x @ first["weight"].T + first["bias"], 0)
    # An input that is always 1 stands for the bias.
    layers = [np.concatenate([inputs, np.ones((len(inputs), 1))], 1) for inputs in (x, hidden)]
    ranks = [int(np.linalg.matrix_rank(inputs)) for inputs in layers]
    assert ranks[0] == len(x) == 8
    numbers = sum(inputs.shape[1] * rank for inputs, rank in zip(layers, ranks))
    if name == "sgp":
        numbers += sum(ranks)  # an importance for each direction
    if name == "became":
        numbers += SIZES["mlp"].P  # and the precision of each weight
    first = [int(np.linalg.matrix_rank(inputs[:4])) for inputs in layers]  # of the first task's four images
    if name == "cuber":
        numbers += TASKS * SIZES["mlp"].P  # and the gradient of each weight in every task
    if name == "trgp":
        numbers += sum(rank**2 for rank in first)  # the second task scales the space of the first one
    columns = sum(first) + sum(ranks) if name in ("trgp", "cuber") else 0  # the numbers of those in each task's space
    assert run.cost.state_bytes == 4 * numbers + 8 * columns


def test_sizes_on_the_alexnet_of_the_papers():
    """6,503,872 weights and biases in 4,544 units, twenty tasks."""
    setting = Setting("task", 20, (10,) * 20, (3, 32, 32), 0, 0.1, 0.0, 64)

    def built(name: str) -> methods.Method:
        method = methods.get(name)()
        method.build(Network(AlexNet((3, 32, 32)), Heads(2048, setting.heads, "task")), setting)
        return method

    assert built("hat").state_bytes() == 4 * 4544 * 20
    assert built("wsn").state_bytes() == 4 * (6_503_872 - 4544)
    plain = Network(AlexNet((3, 32, 32), bias=False), Heads(2048, setting.heads, "task"))
    layers = _bases.matrix_layers(plain, plain.groups()["trunk"])
    assert sum(layer.weight[0].numel() ** 2 for layer in layers.values()) == 5_839_104  # GPM can keep no more
