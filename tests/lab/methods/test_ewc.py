"""EWC: the Fisher information by definition, and how tasks add up in each of its forms."""

from __future__ import annotations

import pytest
import torch
from tests.lab.methods.learners import learner, make, prepared, stream
from torch.nn import functional as F

from drcl.lab import methods
from drcl.lab.training.budget import Plan


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lam": float("nan")}, "lam=nan"),
        ({"lam": -1.0}, "lam=-1.0"),
        ({"decay": 1.5}, "decay=1.5: give a share"),
        ({"samples": 0}, "samples=0: give a whole number of at least 1, or none"),
    ],
)
def test_bad_values_are_refused_by_name(options, message):
    with pytest.raises(ValueError, match=f"ewc: {message}"):
        methods.get("ewc")(**options)
