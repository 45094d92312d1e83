"""What is kept of each task: values measured again by hand."""

from __future__ import annotations

import math

import pytest
import torch
from tests.lab.training.toys import blobs, learner, stream
from torch.nn import functional as F

from drcl.lab import streams
from drcl.lab.methods.base import Where
from drcl.lab.training.budget import Plan
from drcl.lab.training.diary import IMAGES, KEYS, loss_is_due
from drcl.lab.training.events import Watcher
from drcl.lab.training.rows import ChangeRow, LossPoint


class Keep(Watcher):
    def __init__(self):
        self.rows = []

    def records(self, rows):
        self.rows += rows


def test_losses_of_the_first_and_the_newest_task():
    keep, on = Keep(), stream(tasks=3)
    made = learner(on=on, watcher=keep)
    made.run()
    points = [row for row in keep.rows if isinstance(row, LossPoint)]
    assert [(p.task, p.step) for p in points] == [(t, s) for t in range(3) for s in (0, 6, 12)]  # two epochs of six
    assert all(p.first_loss == p.current_loss for p in points if p.task == 0)
    made.model.eval()
    for task, found in ((0, points[-1].first_loss), (2, points[-1].current_loss)):
        x, y = on[task].test.take(slice(None))
        assert len(y) <= IMAGES
        with torch.no_grad():
            assert found == pytest.approx(float(F.cross_entropy(made.model(x, task), y)), rel=1e-5)
    assert made.diary.values["first_loss"][2] == points[-1].first_loss
    assert points[3].current_loss > points[5].current_loss  # it is learned


def test_every_key_has_a_value_per_task():
    made = learner(on=stream(tasks=2))
    made.run()
    assert set(made.diary.values) == set(KEYS)
    assert all(len(values) == 2 for values in made.diary.values.values())
    for key in ("effective_stability", "unmoved", "stiffness"):
        assert made.diary.values[key][1] == made.drifts[0][key]
    assert not math.isnan(made.diary.values["stiffness"][0])
    assert made.diary.values["seconds"] == made.cost.per_task_seconds


def test_changes_add_up_to_the_trunk_at_every_task():
    keep = Keep()
    made = learner(on=stream(tasks=2), watcher=keep)
    made.run()
    rows = [row for row in keep.rows if isinstance(row, ChangeRow)]
    assert [row.task for row in rows] == [0, 1]
    trunk = sum(p.numel() for p in made.model.groups()["trunk"].values())
    for row in rows:
        assert row.weights == trunk == row.unmoved + sum(row.counts)


def test_online_streams_keep_the_loss_of_a_batch_before_and_after_its_step():
    on = streams.online(blobs(2, train=30), seed=2, tasks=2, steps=24, batch=3, permute="labels", scenario="domain")
    made = learner(on=on, plan=Plan(epochs=None, steps=24, batch=3, lr=0.1))
    made.run()
    for pairs in made.diary.step_losses:
        assert pairs
        assert all(after < before for before, after in pairs)  # a step on a batch lowers its loss


def test_validation_images_in_place_of_the_test_sets():
    on = stream(tasks=2, valid=0.25)
    made = learner(on=on, evaluate_on="valid")
    made.run()
    x, y = on[1].valid.take(slice(None))
    made.model.eval()
    with torch.no_grad():
        wanted = float(F.cross_entropy(made.model(x, 1), y))
    assert made.diary.values["current_loss"][1] == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize(("epochs", "looks"), [(1, 1), (3, 3), (10, 10), (12, 6), (100, 10), (25, 9)])
def test_a_long_task_is_looked_at_some_ten_times(epochs, looks):
    due = [e for e in range(epochs) if loss_is_due(Where(epoch=e, step=(e + 1) * 7, batches=7, steps=7 * epochs))]
    assert len(due) == looks
    assert due[-1] == epochs - 1
