"""All methods through one protocol, and for each the invariant its equations promise."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from drcl.lab import methods, networks, streams
from drcl.lab.data.base import DataSet, Split
from drcl.lab.methods.base import Method
from drcl.lab.streams.view import View
from drcl.lab.training.learner import Learner, Plan, Watcher
from drcl.lab.training.settings import Training

PLAN = Plan(epochs=2, batch=8, lr=0.05, momentum=0.9)
CHEAP = {"samples": 30}
# What a method's own rules exclude, and has to be refused with a sentence.
NEEDS_TASK_IDS = {"hat", "wsn", "packnet", "trgp", "cuber", "ibpcl", "ban"}
PLAIN_SGD_ONLY = {"gpm", "sgp", "became", "hat", "ncl", "owm", "trgp", "cuber"}
# Noise on the weights or gates that open slowly: these need more than a handful of steps to leave chance.
SLOW = {"hat": 25, "ucl": 25, "mesu": 25, "evcl": 25, "ibpcl": 25, "ban": 25}
# In how many of two tasks steps are counted, where it is not both: all data at once, or an encoder that is frozen.
TRAINED = {"joint": 0, "sb-mcl": 1}


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
    if method in ("mesu", "ibpcl", "ban"):
        usual = {"samples": 4 if method == "mesu" else 2}  # of the weights, a forward and backward pass each
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


# ---- all of them


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
@pytest.mark.parametrize("scenario", ["task", "domain", "class"])
@pytest.mark.parametrize("name", methods.names())
def test_it_learns_in_every_scenario_it_takes(name, scenario, kind):
    plan = Plan(epochs=SLOW.get(name, 4), batch=8, lr=0.05, momentum=0.9)
    if name in NEEDS_TASK_IDS and scenario != "task":
        with pytest.raises(ValueError, match=f"{name}.*task"):
            learner(make(name), stream(scenario), plan, kind)
        return
    made = learner(make(name), stream(scenario), plan, kind)
    made.run()
    last = made.matrix[-1]
    assert all(0 <= value <= 1 for value in last)
    assert np.nanmax(made.matrix) > 0.7  # two classes: a guess is right half the time
    assert made.cost.gradient_evaluations >= TRAINED.get(name, 2) * 4 * 4
    assert made.cost.state_bytes >= 0
    assert all(p.isfinite().all() for p in made.model.state_dict().values())


@pytest.mark.parametrize("name", methods.names())
def test_it_says_what_it_is_and_takes_adam(name):
    cls = methods.get(name)
    assert cls.name == name
    assert cls.about
    assert cls.__doc__
    if name in PLAIN_SGD_ONLY:
        with pytest.raises(ValueError, match=f"(?i){name}.*adam"):
            learner(make(name), optimizer="adam")
        return
    made = learner(make(name), optimizer="adam", plan=Plan(epochs=SLOW.get(name, 2), batch=8, lr=0.01))
    made.run()
    assert max(made.matrix[-1]) > 0.5


@pytest.mark.parametrize("name", methods.names())
def test_its_state_goes_through_a_checkpoint_and_back(name):
    on, states = stream(tasks=3), []

    class Keep(Watcher):
        def save(self, state):
            from drcl.lab.runs import nested

            states.append(nested.pack(state()))

    whole = learner(make(name), on, watcher=Keep(), checkpoint_every=3)
    end = final(whole)
    assert states
    for text, tensors in states[::2]:
        from drcl.lab.runs import nested

        again = learner(make(name), on)
        again.load_state_dict(nested.unpack(text, tensors))
        assert equal(final(again), end)
        assert np.array_equal(again.matrix, whole.matrix, equal_nan=True)


def test_an_unknown_one_is_refused():
    with pytest.raises(ValueError, match="did you mean 'ewc'"):
        methods.get("ewcc")


# ---- fine-tuning with nothing to protect is what all penalties reduce to


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("l2", {"lam": 0.0}),
        ("ewc", {"lam": 0.0}),
        ("kf-laplace", {"lam": 0.0}),
        ("r-ewc", {"lam": 0.0}),
        ("drcl", {"strength": 0.0, "splitting": "forward-backward", "backend": "reference"}),
    ],
)
def test_without_strength_it_is_fine_tuning(name, options):
    reference, found = final(learner(make("sgd"))), final(learner(make(name, **options)))
    for key, value in reference.items():
        torch.testing.assert_close(found[key], value, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("name", ["l2", "ewc", "kf-laplace", "r-ewc", "drcl"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_first_task_is_fine_tuning_bit_for_bit(name, optimizer):
    """There is nothing to protect yet."""
    one = stream(tasks=1)
    assert equal(
        final(learner(make(name), one, optimizer=optimizer)), final(learner(make("sgd"), one, optimizer=optimizer))
    )


# ---- quadratic penalties


def prepared(name: str, tasks: int = 1, scenario: str = "domain", **options):
    """A method after some tasks, its weights then moved away from where it left them."""
    made = learner(make(name, **options), stream(scenario, tasks))
    made.run()
    start = {n: p.detach().clone() for n, p in made.model.named_parameters()}
    return made, start


@pytest.mark.parametrize("name", ["l2", "ewc"])
def test_the_penalty_is_zero_at_the_start_and_its_gradient_is_the_closed_form(name):
    made, start = prepared(name, lam=3.0)
    method = made.method
    assert float(method.penalty().detach()) == 0
    with torch.no_grad():
        for p in made.model.parameters():
            p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(1)) * 0.1)
    by_autograd = torch.autograd.grad(method.penalty(), list(made.model.parameters()))
    for p in made.model.parameters():
        p.grad = torch.zeros_like(p)
    method.after_backward()
    fisher = (
        method.state["anchors"][0]["fisher"] if name == "ewc" else {n: torch.ones_like(p) for n, p in start.items()}
    )
    for (n, p), g in zip(made.model.named_parameters(), by_autograd):
        torch.testing.assert_close(p.grad, 3.0 * fisher[n] * (p.detach() - start[n]))
        torch.testing.assert_close(p.grad, g)


def test_a_weight_that_is_not_trained_is_not_pulled():
    made, _ = prepared("l2")
    for p in made.model.parameters():
        p.grad = None
    made.method.after_backward()
    assert all(p.grad is None for p in made.model.parameters())


def test_l2_pulls_to_the_last_task_only_and_harder_means_nearer():
    def distance(lam: float) -> float:
        made = learner(make("l2", lam=lam), stream("domain"), Plan(epochs=10, batch=8, lr=0.05))
        made.run()
        return made.drifts[0]["stiffness"]

    lengths = [distance(lam) for lam in (0.0, 0.1, 1.0, 10.0)]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[-1] < 0.3 * lengths[0]


def test_two_quadratics_meet_where_algebra_says():
    """For L2(w) = (w - b)' H (w - b) / 2 the minimiser is (H + lam F)^-1 (H b + lam F a)."""
    made, _ = prepared("ewc", lam=2.0)
    method, p = made.method, next(made.model.parameters())
    rng = torch.Generator().manual_seed(3)
    a, b, fisher, h = (torch.rand(p.shape, generator=rng) + 0.1 for _ in range(4))
    name = next(n for n, _ in made.model.named_parameters())
    method.state["anchors"] = [{"weights": {name: a}, "fisher": {name: fisher}}]
    optimizer = torch.optim.SGD([p], lr=0.1)
    for _ in range(2000):
        optimizer.zero_grad()
        (0.5 * h * (p - b).square()).sum().backward()
        method.after_backward()
        optimizer.step()
    torch.testing.assert_close(p.detach(), (h * b + 2.0 * fisher * a) / (h + 2.0 * fisher), rtol=1e-4, atol=1e-5)


# ---- EWC


def test_the_fisher_is_the_mean_of_squared_gradients_of_single_samples():
    made, _ = prepared("ewc", labels="empirical", samples=None)
    task = made.stream[0]
    names = [n for n, _ in made.model.named_parameters()]
    total = {n: torch.zeros_like(p) for n, p in made.model.named_parameters()}
    made.model.eval()
    x, y = task.train.take(slice(None))
    for i in range(len(y)):
        loss = F.cross_entropy(made.model(x[i : i + 1]), y[i : i + 1])
        for n, g in zip(names, torch.autograd.grad(loss, list(made.model.parameters()))):
            total[n] += g.square() / len(y)
    for n, found in made.method.state["anchors"][0]["fisher"].items():
        torch.testing.assert_close(found, total[n], rtol=1e-4, atol=1e-9)


def tasks_of(kind: str, **options):
    """EWC with lam 0 trains alike whatever its kind, so its Fishers can be compared over kinds."""
    made = learner(make("ewc", lam=0.0, kind=kind, **options), stream("domain", tasks=3))
    made.run()
    return made.method.state["anchors"]


def test_online_without_decay_is_the_sum_of_the_separate_fishers_at_the_last_anchor():
    separate, online = tasks_of("separate"), tasks_of("online", decay=1.0)
    assert (len(separate), len(online)) == (3, 1)
    for n, found in online[0]["fisher"].items():
        torch.testing.assert_close(found, sum(a["fisher"][n] for a in separate))
        assert torch.equal(online[0]["weights"][n], separate[-1]["weights"][n])
        assert (found >= 0).all()


def test_decay_and_average_weigh_the_tasks_as_written():
    separate = tasks_of("separate")
    for n, found in tasks_of("online", decay=0.5)[0]["fisher"].items():
        one, two, three = (a["fisher"][n] for a in separate)
        torch.testing.assert_close(found, 0.25 * one + 0.5 * two + three)
    for n, found in tasks_of("averaged")[0]["fisher"].items():
        torch.testing.assert_close(found, sum(a["fisher"][n] for a in separate) / 3)


def test_ewc_keeps_two_copies_of_the_trunk_or_two_for_every_task():
    trunk = 64 * 10 + 10
    for kind, copies in (("online", 2), ("averaged", 2), ("separate", 6)):
        made = learner(make("ewc", kind=kind), stream(tasks=3))
        made.run()
        assert made.cost.state_bytes == copies * trunk * 4


def test_ewc_warns_where_its_penalty_alone_must_diverge():
    with pytest.warns(UserWarning, match=r"lr \* lam \* max F"):
        learner(make("ewc", lam=1e9), stream(tasks=1), Plan(epochs=1, batch=8, lr=0.01)).run()


# ---- DRCL


def test_drcl_is_judged_at_z_and_trains_at_y():
    made = learner(make("drcl", splitting="douglas-rachford", strength=0.1), stream("domain", tasks=2))
    made.run()
    optimizer = made.method._optimizer
    assert optimizer.tasks == 2
    made._inside, made.at.task, made.at.stage, made.at.step = False, 1, 0, 0
    from drcl.lab.methods.base import Batch

    x, y = made.stream[1].train.take(slice(None))
    made.model.train()
    made.method.step(optimizer, lambda: backward(made, Batch(x, 1 - y, 0)))
    y_weights = {n: p.detach().clone() for n, p in made.model.named_parameters()}
    with made.method.deployed():
        z_weights = {n: p.detach().clone() for n, p in made.model.named_parameters()}
        for _, state in optimizer.protected():
            assert "z" in state
    assert any(not torch.equal(y_weights[n], z_weights[n]) for n in y_weights)
    assert all(torch.equal(p.detach(), y_weights[n]) for n, p in made.model.named_parameters())


def backward(made: Learner, batch) -> torch.Tensor:
    for p in made.model.parameters():
        p.grad = None
    loss = made.method.loss(batch)
    loss.backward()
    return loss.detach()


def test_drcl_of_infinite_strength_leaves_the_trunk_and_trains_the_head():
    made = learner(make("drcl", strength=float("inf"), damping=1.0), stream(tasks=2))
    made.run()
    assert made.drifts[0]["unmoved"] == 1.0
    assert made.matrix[1][0] == made.matrix[0][0]
    assert made.matrix[1][1] > 0.7


def test_drcl_protects_a_shared_head_and_leaves_single_heads_free():
    for scenario, guarded in (("task", 2), ("domain", 4), ("class", 4)):
        made = learner(make("drcl"), stream(scenario))
        made.run()
        assert len(list(made.method._optimizer.protected())) == guarded


def test_drcl_counts_what_it_keeps():
    trunk = 64 * 10 + 10
    for splitting, copies in (("forward-backward", 2), ("douglas-rachford", 3)):
        made = learner(make("drcl", splitting=splitting))
        made.run()
        assert made.cost.state_bytes == copies * trunk * 4


@pytest.mark.parametrize(
    "options",
    [
        {"importance": "mas"},
        {"importance": "path"},
        {"labels": "exact"},
        {"prox": "l2"},
        {"memory": 0.5},
        {"stable": 0.7},
    ],
    ids=str,
)
def test_the_options_of_the_library_are_reachable(options):
    made = learner(make("drcl", **options), stream("domain", tasks=2))
    made.run()
    anchor = made.method._optimizer.anchor
    estimator = {"mas": "MAS", "path": "PathIntegral"}.get(options.get("importance", ""), "Fisher")
    assert anchor.provenance["made"][0]["estimator"] == estimator
    assert anchor.provenance["memory"] == options.get("memory", "sum")
    if "stable" in options:
        assert 0.5 < made.drifts[0]["unmoved"] < 0.95


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("l2", {"lam": -1.0}, "lam=-1.0"),
        ("ewc", {"lam": float("nan")}, "lam=nan"),
        ("ewc", {"decay": 1.5}, "decay=1.5"),
        ("ewc", {"samples": 0}, "samples=0"),
        ("drcl", {"strength": -1.0}, "strength=-1.0"),
        ("drcl", {"stable": 1.5}, "stable=1.5"),
        ("drcl", {"momentum": 1.0}, "momentum=1.0"),
        ("drcl", {"iterations": 0}, "iterations=0"),
        ("drcl", {"samples": 0}, "samples=0"),
        ("drcl", {"path_damping": 0.0}, "damping=0.0"),
        ("drcl", {"memory": 2.0}, "memory=2.0"),
    ],
)
def test_bad_values_are_refused_by_name(name, options, message):
    with pytest.raises(ValueError, match=message):
        methods.get(name)(**options)
