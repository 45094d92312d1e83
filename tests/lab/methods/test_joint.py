"""Joint training: nothing until the last task, and then everything at once."""

from __future__ import annotations

import math

import numpy as np
import torch
from tests.lab.training.toys import learner, stream, weights

from drcl.lab.methods.joint import Joint
from drcl.lab.methods.sgd import SGD
from drcl.lab.training.budget import Plan


def test_joint_is_no_worse_than_fine_tuning_and_trains_all_heads_at_once():
    on = stream("class", tasks=3)
    plan = Plan(epochs=20, batch=8, lr=0.05, momentum=0.9)
    together, tuned = learner(Joint(), on, plan), learner(SGD(), on, plan)
    together.run()
    tuned.run()
    assert np.mean(together.matrix[-1]) > 0.9 > np.mean(tuned.matrix[-1])
    assert np.isnan(together.matrix[:-1]).all()
    assert together.cost.gradient_evaluations == 20 * math.ceil(3 * 48 / 8)
    heads = learner(Joint(), stream(tasks=3), plan)
    start = weights(heads.model)
    heads.run()
    assert np.mean(heads.matrix[-1]) > 0.9
    assert not any(torch.equal(start[name], value) for name, value in heads.model.state_dict().items())


def test_all_tasks_come_with_the_last_one():
    on = stream(tasks=3)
    method = Joint()
    assert [len(method.data(task, on)) for task in on] == [0, 0, 3]


def test_it_keeps_nothing_and_is_trained_once():
    made = learner(Joint())
    made.run()
    assert made.cost.state_bytes == 0
    assert made.drifts == []  # there is one trained task only
    assert made.trained == 1
