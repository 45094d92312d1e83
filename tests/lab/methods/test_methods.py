"""All methods through one protocol: they learn, say what they are, survive a checkpoint, and reduce to fine-tuning."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.lab.methods.learners import equal, final, learner, make, stream

from drcl.lab import methods
from drcl.lab.runs import nested
from drcl.lab.training.budget import Plan
from drcl.lab.training.events import Watcher

# What a method's own rules exclude, and has to be refused with a sentence.
NEEDS_TASK_IDS = {"hat", "wsn", "packnet", "trgp", "cuber", "ibpcl", "ban"}
PLAIN_SGD_ONLY = {"gpm", "sgp", "became", "hat", "ncl", "owm", "trgp", "cuber"}
# Noise on the weights or gates that open slowly: these need more than a handful of steps to leave chance.
SLOW = {"hat": 25, "ucl": 25, "mesu": 25, "evcl": 25, "ibpcl": 6, "ban": 6}
# How many of two tasks train step by step, if not both: all data at once, or a frozen encoder.
TRAINED = {"joint": 0, "sb-mcl": 1}


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
            states.append(nested.pack(state()))

    whole = learner(make(name), on, watcher=Keep(), checkpoint_every=3)
    end = final(whole)
    assert states
    for text, tensors in states[::2]:
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
