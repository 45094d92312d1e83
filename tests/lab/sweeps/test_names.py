"""Short names for the runs of a plan."""

from __future__ import annotations

from drcl.lab.sweeps import sweep
from drcl.lab.sweeps.names import labels


def test_labels_say_no_more_than_what_differs():
    plan = {"benchmarks": "digits-split", "methods": ["sgd", "ewc"], "grid": {"ewc": {"lam": [1.0, 10.0]}}}
    assert labels(sweep.plan(plan)) == ["sgd", "ewc lam=1", "ewc lam=10"]
    assert labels(sweep.plan({**plan, "seeds": 2}))[0] == "sgd · seed 0"
