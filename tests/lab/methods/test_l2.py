"""The uniform penalty: it holds to the last task only, and harder means nearer."""

from __future__ import annotations

import pytest
import torch
from tests.lab.methods.learners import learner, make, stream

from drcl.lab.methods.l2 import L2
from drcl.lab.training.budget import Plan


def test_l2_pulls_to_the_last_task_only_and_harder_means_nearer():
    def distance(lam: float) -> float:
        made = learner(make("l2", lam=lam), stream("domain"), Plan(epochs=10, batch=8, lr=0.05))
        made.run()
        return made.drifts[0]["stiffness"]

    lengths = [distance(lam) for lam in (0.0, 0.1, 1.0, 10.0)]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[-1] < 0.3 * lengths[0]


def test_it_keeps_one_copy_of_what_is_shared():
    made = learner(make("l2"))
    made.run()
    assert made.cost.state_bytes == (64 * 10 + 10) * 4
    shared = made.method.protected()
    assert all(torch.equal(anchor, shared[name]) for name, anchor in made.method.state["anchor"].items())


@pytest.mark.parametrize("lam", [-1.0, float("inf"), float("nan")])
def test_bad_values_are_refused_by_name(lam):
    with pytest.raises(ValueError, match=f"l2: lam={lam}: give a finite number of at least 0"):
        L2(lam=lam)
