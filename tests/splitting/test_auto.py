"""strength="auto": its unit, what the first gradients tell, and what a resumed or longer task does with it."""

import copy
import itertools
import math

import numpy as np
import pytest
import torch
from tests.tasks import fit, mlp, task
from torch import nn

from drcl import DRCL, Anchor, Fisher, Kronecker
from drcl.importance.base import Importance
from drcl.importance.labels import output_cotangents
from drcl.splitting import auto
from drcl.splitting.step_size import Sizes


class Given(Importance):
    """An estimator that returns the given importance."""

    needs_data = False

    def __init__(self, importance):
        self.importance = importance

    def estimate(self, model, batches, parameters, forward=None):
        return {name: self.importance.clone() for name in parameters}

    def describe(self):
        return {"estimator": "Given"}


# -- outputs in place of labels ----------------------------------------------------------------------------------------


class AllSigns:
    """In place of a random generator: every combination of signs, row by row."""

    def integers(self, low, high, shape):
        return np.resize(np.array(list(itertools.product((0, 1), repeat=shape[1]))), shape)


@pytest.mark.parametrize("likelihood", ["softmax", "gaussian", "bernoulli"])
def test_the_outputs_are_asked_in_every_direction_alike(likelihood):
    """Over all signs the mean of v v^T is the identity, of a softmax less the direction of all ones, of trace one."""
    output = torch.randn(8, 3, dtype=torch.float64)
    target = torch.zeros(8, dtype=torch.long) if likelihood == "softmax" else torch.zeros(8, 3, dtype=torch.float64)
    ((v,),) = output_cotangents(output, 8, AllSigns(), target, likelihood)
    expected = torch.eye(3, dtype=torch.float64) / 3
    if likelihood == "softmax":
        expected = (torch.eye(3, dtype=torch.float64) - 1 / 3) / 2
    torch.testing.assert_close(v.T @ v / 8, expected)


def test_positions_share_one_sample():
    """All counted positions of a sequence together have the weight of a single output."""
    rng = np.random.default_rng(0)
    labels = torch.tensor([[0, 1, -100, -100], [1, 2, 0, 1]])
    ((v,),) = output_cotangents(torch.randn(2, 4, 3, dtype=torch.float64), 2, rng, labels, "softmax")
    assert bool((v[0, 2:] == 0).all())
    torch.testing.assert_close(v.square().sum((1, 2)), torch.ones(2, dtype=torch.float64))
    torch.testing.assert_close(v.sum(2), torch.zeros(2, 4, dtype=torch.float64))


def test_importance_is_that_of_the_jacobian_and_adds_up():
    """Because v has length one, the importances of an input's weights add up to its mean square."""
    torch.manual_seed(0)
    model = nn.Linear(3, 4, bias=False).double()
    opt = DRCL(model.named_parameters(), lr=0.1)
    x = torch.randn(512, 3, dtype=torch.float64)
    y = torch.randint(4, (512,))
    for tasks in (1, 2):
        opt.consolidate(model, [(x, y)], Fisher(samples=512))
        torch.testing.assert_close(opt.state[model.weight]["importance"].sum(0), tasks * x.square().mean(0))


# -- the unit ----------------------------------------------------------------------------------------------------------


def drift_of(steps, lr, momentum=0.0, scale=1.0, importance=0.01, horizon=None, inner=None, monkeypatch=None):
    """How far two weights move in the second of two tasks under a constant gradient."""
    w = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    model = nn.Module()
    model.w = w
    if inner is None:
        opt = DRCL([("w", w)], lr=lr, momentum=momentum, horizon=horizon)
    else:
        opt = DRCL.around(inner([("w", w)], lr=lr), horizon=horizon)

    def go(n):
        for _ in range(n):
            w.grad = torch.tensor([-1.0, -0.5], dtype=torch.float64) * scale
            opt.step()

    go(steps)
    opt.consolidate(model, importance=Given(torch.full((2,), importance, dtype=torch.float64)))
    start = w.detach().clone()
    go(steps)
    with opt.deployed():
        return (w.detach() - start), opt


def test_a_lasting_gradient_goes_as_far_whatever_rate_momentum_and_number_of_steps():
    """By the differential equation w' = g - strength * s * w over a task of length T: T g (1 - exp(-ks)) / ks.

    The gradient is small, so that k / T is above the price.
    """
    first, opt = drift_of(1000, 0.01, scale=0.01)
    k = auto.pull(opt.progress.energy)
    assert auto.price(opt) < k / 10
    expected = 0.1 * (1 - math.exp(-k * 0.01)) / (k * 0.01) * torch.tensor([1.0, 0.5], dtype=torch.float64)
    torch.testing.assert_close(first, expected, rtol=0.02, atol=0)
    for steps, lr, momentum in ((100, 0.1, 0.0), (10_000, 0.001, 0.0), (1000, 0.001, 0.9)):
        moved, _ = drift_of(steps, lr, momentum, scale=0.01)
        torch.testing.assert_close(moved, first, rtol=0.1, atol=0)


def test_around_adam_the_scale_of_the_loss_is_nothing():
    """Adam cancels it, so the strength must not depend on it."""
    one, _ = drift_of(200, 0.01, inner=torch.optim.Adam)
    thousand, _ = drift_of(200, 0.01, scale=1000.0, inner=torch.optim.Adam)
    torch.testing.assert_close(one, thousand, rtol=1e-4, atol=0)


@pytest.mark.parametrize("inner", [torch.optim.Adam, torch.optim.Adagrad, torch.optim.RMSprop])
def test_wrapped_optimizers_are_held_too(inner):
    free, _ = drift_of(200, 0.01, importance=0.0, inner=inner)
    held, _ = drift_of(200, 0.01, importance=1.0, inner=inner)
    assert bool((held.abs() < 0.2 * free.abs()).all())


def test_the_strength_follows_the_length_of_a_task():
    # The gradients are small, so that k / T is above the price.
    _, opt = drift_of(100, 0.1, scale=0.001)
    k = auto.pull(opt.progress.energy)
    group = opt.param_groups[0]
    assert opt.strengths[0] == pytest.approx(k / (100 * 0.1), rel=0.01)
    opt.progress.steps, opt.progress.travel = 300, [30.0]  # three times as long as the last task
    assert auto.strength(opt, group) == pytest.approx(k / 30)
    _, given = drift_of(100, 0.1, scale=0.001, horizon=400)
    assert given.strengths[0] == pytest.approx(auto.pull(given.progress.energy) / 40, rel=0.01)


def test_a_rate_that_falls_later_counts_from_then_on():
    _, opt = drift_of(100, 0.1, scale=0.01)
    opt.progress.steps, opt.progress.travel = 10, [0.1]
    assert auto.strength(opt, opt.param_groups[0]) == pytest.approx(auto.pull(opt.progress.energy) / (100 * 0.01))


# -- room --------------------------------------------------------------------------------------------------------------


def test_room_against_brute_force():
    torch.manual_seed(0)
    importance = torch.exp(3 * torch.randn(4000, dtype=torch.float64))
    energy = torch.rand(4000, dtype=torch.float64)
    free = 100.0
    places = auto._sorted(importance, energy)
    places[0] += free
    for k in (0.0, 0.1, 3.0, 200.0, 1e6):
        exact = float((energy / (1 + k * importance)).sum() + free) / float(energy.sum() + free)
        assert auto.room(places.tolist(), k) == pytest.approx(exact, rel=0.03)


def test_pull_stays_in_reach_and_asks_for_more_where_there_is_room():
    crowded = auto._sorted(torch.full((5,), 1e3), torch.ones(5)).tolist()
    spare = auto._sorted(torch.full((5,), 1e-9), torch.ones(5)).tolist()
    assert auto.pull(crowded) == pytest.approx(auto.PULL * auto.LESS**-auto.BELIEF, rel=0.01)
    assert auto.pull(spare) == pytest.approx(auto.PULL * auto.MORE**auto.BELIEF, rel=0.01)
    assert auto.pull([]) == auto.pull([0.0] * auto.PLACES) == auto.PULL
    none_left = auto._sorted(torch.zeros(3), torch.ones(3)).tolist()
    assert none_left[0] == 3.0


def test_the_room_is_that_of_the_layers_directions():
    """Against the whole matrix of a layer's importance: U diag(s) U^T, its gradient, and what passes of it. A head that
    nothing holds does not count."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3))
    opt = DRCL(
        [
            {"params": list(model[0].named_parameters("0"))},
            {"params": list(model[1].named_parameters("1")), "free": True},
        ],
        lr=0.1,
    )
    x, y = torch.randn(64, 5), torch.randint(3, (64,))
    opt.consolidate(model, [(x, y)], Kronecker(samples=64))
    nn.functional.cross_entropy(model(x), y).backward()
    grads = [p.grad.clone() for p in model.parameters()]
    opt.step()
    basis = opt.progress.layers[model[0].weight].basis
    g = torch.cat([grads[0], grads[1][:, None]], 1)
    u, v = basis.sides()
    turned = (v[0, 0].T if v.ndim == 4 else v[0].T) @ g @ (u[0, 0] if u.ndim == 4 else u[0])
    s = basis.eigenvalues[0, 0]
    for k in (1.0, 100.0):
        exact = float((turned.square() / (1 + k * s)).sum()) / float(g.square().sum())
        # Importance is sorted into half octaves: it may be off by a factor of 2^(1/4).
        assert auto.room(opt.progress.energy, k) == pytest.approx(exact, rel=2**0.25 - 1)


def test_a_new_head_says_nothing_about_the_room_in_the_trunk():
    """A head per task: however large the new head's gradient is, the hold on the trunk is the same."""

    def energy(of_head):
        torch.manual_seed(0)
        trunk, heads = nn.Linear(5, 4), nn.ModuleList([nn.Linear(4, 3), nn.Linear(4, 3)])
        shared, own = list(trunk.named_parameters("trunk")), list(heads.named_parameters("heads"))
        opt = DRCL([{"params": shared}, {"params": own, "free": True}], lr=0.1)
        x, y = torch.randn(64, 5), torch.randint(3, (64,))
        opt.consolidate(nn.Sequential(trunk, heads[0]), [(x, y)], Kronecker(samples=64))
        trunk.weight.grad, trunk.bias.grad = torch.randn(4, 5), torch.randn(4)
        if of_head:
            heads[1].weight.grad = of_head * torch.ones(3, 4)
        opt.step()
        return opt.progress.energy

    assert sum(energy(0.0)) > 0
    assert energy(0.0) == energy(1.0) == energy(1e3)


# -- the price ---------------------------------------------------------------------------------------------------------


def jacobians(model, x):
    """d output / d weight of every sample and output, by brute force: [samples, outputs, weights]."""
    found = []
    for sample in x:
        output = model(sample[None])[0]
        rows = [torch.autograd.grad(o, list(model.parameters()), retain_graph=True) for o in output]
        found.append(torch.stack([torch.cat([t.flatten() for t in row]) for row in rows]))
    return torch.stack(found)


class Rows(nn.Module):
    """A recurrent network: its weights are used at every step."""

    def __init__(self):
        super().__init__()
        self.rows, self.head = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.rows(x)[0][:, -1])


@pytest.mark.parametrize("form", ["mlp", "lstm"])
def test_importance_adds_up_to_that_of_the_whole_jacobian(form):
    """Weights that are used at many steps are not counted more or less than others: the trace is that of E[J^T J]."""
    torch.manual_seed(0)
    model = (nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 3)) if form == "mlp" else Rows()).double()
    x = torch.randn(300, *((3,) if form == "mlp" else (6, 3)), dtype=torch.float64)
    j = jacobians(model, x)
    centred = j - j.mean(1, keepdim=True)  # a softmax does not see what all outputs have in common
    exact = float(centred.square().sum((1, 2)).mean()) / 2
    opt = DRCL(model.named_parameters(), lr=0.1)
    opt.consolidate(model, [(x, torch.randint(3, (300,)))], Kronecker(samples=300, passes=2))
    layers = opt.progress.layers
    within = {p for p in layers} | {layer.bias for layer in layers.values()}
    rest = [opt.state[p]["importance"] for p in model.parameters() if p not in within]
    found = sum(layer.basis.total for layer in layers.values()) + sum(float(t.sum()) for t in rest)
    assert found == pytest.approx(exact, rel=0.1)


@pytest.mark.parametrize("tasks", [1, 3])
@pytest.mark.parametrize("memory", ["sum", 0.5, "latest"])
def test_delta_is_the_derivative_by_the_outputs(tasks, memory):
    """Of a linear layer on one input, where J is the same for all samples: g = delta x^T, and s adds up to |x|^2."""
    model = nn.Linear(3, 4, bias=False).double()
    opt = DRCL(model.named_parameters(), lr=0.1, memory=memory)
    x = torch.randn(1, 3, dtype=torch.float64).expand(64, 3)
    for _ in range(tasks):
        opt.consolidate(model, [(x, torch.randint(4, (64,)))], Fisher(samples=64))
    delta = torch.randn(4, dtype=torch.float64)
    for n in (1.0, 2.0):
        model.weight.grad = n * torch.outer(delta, x[0])
        opt.step()
    assert opt.progress.slope == pytest.approx(float(delta.square().sum()) * (1 + 4) / 2)


@pytest.mark.parametrize(
    ("delta", "price"), [(0.0, 0.0), (0.01, 3.0), (0.1, 9.0), (0.3, 9.0), (1.0, 15.0), (1e3, 15e3)]
)
def test_the_price_is_in_units_of_the_loss_within_limits(delta, price):
    opt = DRCL([("w", nn.Parameter(torch.zeros(2)))], lr=0.1)
    opt.progress.slope = delta**2
    assert auto.price(opt) == pytest.approx(price)


def test_the_price_grows_with_the_cube_root_of_the_multiplications_of_an_answer():
    """A convolution multiplies by its weights at every position, a layer of a sequence at every element.

    A model that answers at every element of a sequence needs each weight once per answer.
    """
    torch.manual_seed(0)
    pixels = nn.Sequential(nn.Conv2d(3, 5, 3, padding=1), nn.GroupNorm(1, 5), nn.Flatten(), nn.Linear(5 * 64, 4))
    sequence = nn.Sequential(nn.Linear(3, 6), nn.Flatten(), nn.Linear(6 * 7, 4))
    tokens = nn.Sequential(nn.Linear(3, 6), nn.Linear(6, 4))
    y = torch.randint(4, (8,))
    for model, x, count in (
        (pixels, torch.randn(8, 3, 8, 8), 5 * 27 * 64 + 320 * 4),
        (sequence, torch.randn(8, 7, 3), 18 * 7 + 42 * 4),
        (tokens, torch.randn(8, 7, 3), 18 + 24),
    ):
        opt = DRCL(model.named_parameters(), lr=0.1)
        opt.consolidate(model, [(x, y if model is not tokens else torch.randint(4, (8, 7)))])
        assert opt.progress.made[-1]["multiplications"] == count
        opt.progress.slope = 0.01
        assert auto.price(opt) == pytest.approx(auto.PRICE * (max(count, auto.TRIED[0]) / auto.UNIT) ** (1 / 3))
        opt.progress.made[-1]["multiplications"] = 10**12
        assert auto.price(opt) == pytest.approx(auto.PRICE * (auto.TRIED[1] / auto.UNIT) ** (1 / 3))
        opt.progress.made[-1]["multiplications"] = 0
        assert auto.price(opt) == pytest.approx(auto.PRICE)


@pytest.mark.parametrize(("memory", "shares"), [("sum", [1, 2, 3]), (0.5, [1, 1.5, 1.75]), ("latest", [1, 1, 1])])
def test_the_price_is_shared_by_the_tasks(memory, shares):
    model = nn.Linear(3, 2)
    opt = DRCL(model.named_parameters(), lr=0.1, preset="auto", memory=memory)
    for share in shares:
        opt.consolidate(model, [(torch.randn(8, 3), torch.randint(2, (8,)))])
        opt.progress.slope = 0.01
        assert auto.price(opt) == pytest.approx(auto.PRICE * (auto.TRIED[0] / auto.UNIT) ** (1 / 3) / share)


def test_where_it_binds_the_minimiser_is_that_of_the_loss_and_the_price():
    """f = -g w + w^2 / 2 and price * s * w^2 / 2, from zero: w = g / (1 + price * s), however long the task is."""
    for lr, steps in ((0.02, 1000), (0.01, 4000)):
        w = nn.Parameter(torch.zeros(2, dtype=torch.float64))
        model = nn.Module()
        model.w = w
        opt = DRCL([("w", w)], lr=lr, horizon=10**6, preset="auto", plasticity_steps=1)
        opt.consolidate(model, importance=Given(torch.tensor([1.0, 0.1], dtype=torch.float64)))
        g = torch.tensor([-1.0, 2.0], dtype=torch.float64)
        for _ in range(steps):
            w.grad = w.detach() - g
            opt.step()
        price = auto.price(opt)
        assert opt.strengths[0] == price > auto.pull(opt.progress.energy) / (lr * 10**6)
        torch.testing.assert_close(w.detach(), g / (1 + price * opt.state[w]["importance"]), rtol=0.02, atol=0)


@pytest.mark.parametrize("steps", [200, 1000, 10_000])
def test_in_a_full_network_as_much_passes_as_seven_free_steps(steps):
    """All directions are equally important, so at the price alone next to nothing would pass.

    At a pull of k, 1 / (1 + k) of each of the n steps passes. All of them together are 7 steps if k = n / 7 - 1.
    """
    w = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    model = nn.Module()
    model.w = w
    opt = DRCL([("w", w)], lr=0.1, horizon=steps, preset="auto", plasticity_steps=1)
    opt.consolidate(model, importance=Given(torch.ones(2, dtype=torch.float64)))
    w.grad = torch.full((2,), 0.1, dtype=torch.float64)
    opt.step()
    whole = 0.1 * steps
    assert auto.price(opt) * whole > 2 * (steps / 7 - 1) > auto.pull(opt.progress.energy)
    assert opt.strengths[0] * whole == pytest.approx(steps / 7 - 1, rel=0.2)


def test_the_limit_of_the_price_needs_gradients():
    assert auto.most([], 100) == auto.most([0.0] * auto.PLACES, 100) == math.inf


def test_around_adam_the_price_is_that_of_the_loss_in_its_step_sizes():
    """The least strength * mean is the price, so that a threshold is gamma / sqrt(v) * price * s."""
    w = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    opt = DRCL.around(torch.optim.Adam([("w", w)], lr=0.01))
    model = nn.Module()
    model.w = w
    opt.consolidate(model, importance=Given(torch.full((2,), 0.5, dtype=torch.float64)))
    w.grad = torch.tensor([1.0, 3.0], dtype=torch.float64)
    opt.step()
    opt.state[w].setdefault("start", w.detach().clone())
    group, metric = opt.param_groups[0], torch.tensor([1.0, 3.0], dtype=torch.float64)
    s = opt.state[w]["importance"]
    low, high = (Sizes(opt, 0.01, 0.0, group, least).weights(w, s) for least in (0.0, 50.0))
    torch.testing.assert_close(low, s * metric.mean() / metric)
    torch.testing.assert_close(high, s * 50.0 / metric)


# -- life --------------------------------------------------------------------------------------------------------------


def test_resumed_among_the_first_steps_it_goes_on_bit_for_bit():
    model = mlp()
    opt = DRCL(model.named_parameters(), lr=0.05, momentum=0.9)
    fit(model, opt, task(0))
    opt.consolidate(model, task(0), Kronecker(samples=16))
    fit(model, opt, task(1)[:3])
    twin = copy.deepcopy(model)
    again = DRCL(twin.named_parameters(), lr=0.05, momentum=0.9)
    again.load_state_dict(opt.state_dict())
    for m, o in ((model, opt), (twin, again)):
        fit(m, o, task(1))
    assert opt.progress.energy == again.progress.energy
    for p, q in zip(model.parameters(), twin.parameters()):
        assert torch.equal(p, q)


def test_an_anchor_brings_the_length_of_its_task(tmp_path):
    model = mlp()
    opt = DRCL(model.named_parameters(), lr=0.05)
    fit(model, opt, task(0))
    steps = opt.progress.steps
    opt.consolidate(model, task(0), Kronecker(samples=16))
    opt.anchor.save(tmp_path / "a.safetensors")
    other = DRCL.around(torch.optim.AdamW(model.named_parameters(), lr=1e-3))
    other.protect(model, Anchor.load(tmp_path / "a.safetensors"))
    assert other.progress.horizon == steps > 0


def test_what_is_told_decides_the_form():
    p = [nn.Parameter(torch.zeros(2, 2))]
    assert DRCL(p, lr=0.1).param_groups[0]["strength"] == "auto"
    assert DRCL(p, lr=0.1, momentum=0.9, norms="frozen").solver.plasticity_steps == 10
    for told in ({"strength": 0.1}, {"stable": 0.5}, {"prox": "l2"}, {"splitting": "douglas-rachford"}):
        assert DRCL(p, lr=0.1, **told).solver.normalise == "task"
    assert DRCL([{"params": p, "strength": 0.5}], lr=0.1).param_groups[0]["strength"] == 0.5
    assert DRCL([{"params": p, "strength": 0.5}], lr=0.1).solver.normalise == "task"
    assert DRCL(p, lr=0.1, preset="weights").strengths == [0.001]
    assert math.isnan(DRCL(p, lr=0.1).strengths[0])


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"strength": "auto", "prox": "l1"}, "needs prox='l2' and unscaled importance"),
        ({"strength": "auto", "normalise": "task", "prox": "l2"}, "preset='auto' sets both"),
        ({"strength": "much"}, "strength='much' must be a number, or 'auto'"),
        ({"horizon": 0}, "horizon=0 must be a whole number of at least 1"),
    ],
)
def test_what_cannot_be(told, words):
    with pytest.raises((TypeError, ValueError), match=words):
        DRCL([nn.Parameter(torch.zeros(2))], lr=0.1, **told)


def test_labels_of_another_unit_are_refused():
    model = mlp()
    opt = DRCL(model.named_parameters(), lr=0.05)
    with pytest.raises(ValueError, match=r"Fisher\(labels='exact'\): strength='auto' needs labels='outputs'"):
        opt.consolidate(model, task(0), Fisher(labels="exact"))
    opt.consolidate(model, task(0), Fisher(samples=8))
    assert opt.progress.made[-1]["labels"] == "outputs"
