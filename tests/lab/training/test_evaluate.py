"""What is measured between tasks: accuracy, which test sets, and how far the trunk has moved."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.lab.training.toys import blobs, learner, stream, weights

from drcl.lab import networks, streams
from drcl.lab.streams.examples import Examples
from drcl.lab.training import evaluate
from drcl.lab.training.events import Watcher
from drcl.lab.training.plateau import validation_loss
from drcl.lab.training.settings import Training


def test_drift_compares_the_trunk_before_and_after_each_task():
    states: list[dict[str, torch.Tensor]] = []
    rows: list = []

    class Look(Watcher):
        def drift(self, found):
            rows.extend(found)
            states.append(weights(made.model))

    made = learner(on=stream(tasks=3), watcher=Look(), step_norms=True)
    states.append(weights(made.model))
    made.run()
    for task in range(3):
        old = torch.cat([states[task][f"trunk.fc1.{n}"].flatten() for n in ("weight", "bias")]).double()
        new = torch.cat([states[task + 1][f"trunk.fc1.{n}"].flatten() for n in ("weight", "bias")]).double()
        row = rows[task]
        assert (row.task, row.layer, row.weights) == (task, "fc1", 16 * 6 + 6)
        assert row.unmoved == float((old == new).double().mean())
        assert row.mean_change == pytest.approx(float((old - new).abs().mean()))
        assert row.largest_change == pytest.approx(float((old - new).abs().max()))
        assert row.relative_change == pytest.approx(float((old - new).norm() / old.norm()))
        if task:
            assert made.drifts[task - 1]["stiffness"] == pytest.approx(float((old - new).norm()))
            small = ((old - new).abs() < 0.05 * old.abs()) | (old == new)
            assert made.drifts[task - 1]["effective_stability"] == float(small.double().mean())
    assert len(made.drifts) == 2
    assert len(made.step_norms) == 3


def test_ends_measures_the_diagonal_and_the_last_row():
    made = learner(on=stream(tasks=4), evaluate="ends")
    made.run()
    there = ~np.isnan(np.array(made.matrix))
    assert there.tolist() == [[i == j or i == 3 for j in range(4)] for i in range(4)]


def test_unseen_tasks_and_the_untrained_network_on_request():
    made = learner(evaluate_unseen=True)
    untrained = networks.build({"kind": "mlp", "hidden": [6]}, made.stream, seed=5).eval()
    made.run()
    assert not np.isnan(made.matrix).any()
    for j, task in enumerate(made.stream):
        x, y = task.test.take(slice(None))
        assert made.untrained is not None
        assert made.untrained[j] == float((untrained(x, j).argmax(1) == y).double().mean())
    growing = learner(on=stream("class"), evaluate_unseen=True)
    growing.run()
    assert math.isnan(growing.matrix[0][1])  # classes it has not met cannot be answered


def test_movement_leaves_the_prefix_out_and_has_nothing_to_say_of_nothing():
    old = {"trunk.fc1.weight": torch.tensor([[1.0, 2.0]]), "trunk.fc1.bias": torch.tensor([0.0])}
    new = {"trunk.fc1.weight": torch.tensor([[1.0, 4.0]]), "trunk.fc1.bias": torch.tensor([0.0])}
    rows, summary = evaluate.movement(3, old, new)
    (row,) = rows
    assert (row.task, row.layer, row.weights, row.unmoved, row.largest_change) == (3, "fc1", 3, 2 / 3, 2.0)
    assert row.relative_change == pytest.approx(2 / math.sqrt(5))
    assert summary == {
        "unmoved": 2 / 3,
        "effective_stability": 2 / 3,
        "effective_stability_0.001": 2 / 3,
        "stiffness": 2.0,
    }
    assert evaluate.movement(0, {}, {}) == ([], {})
    assert evaluate.movement(0, {"trunk.a": torch.empty(0)}, {"trunk.a": torch.empty(0)}) == ([], {})


@pytest.mark.parametrize(
    ("scenario", "options", "wanted"),
    [
        ("task", {}, [0, 1]),
        ("task", {"evaluate": "ends"}, [1]),
        ("task", {"evaluate_unseen": True}, [0, 1, 2, 3]),
        ("class", {"evaluate_unseen": True}, [0, 1]),  # a growing head does not know classes to come
    ],
)
def test_which_test_sets_are_run_after_the_second_of_four_tasks(scenario, options, wanted):
    on = stream(scenario, tasks=4)
    assert evaluate.chosen(1, on, Training(**options)) == wanted
    assert evaluate.chosen(3, on, Training(**options)) == [0, 1, 2, 3]


def test_an_online_stream_is_tested_at_its_ends_unless_said_otherwise():
    on = streams.online(blobs(2), seed=2, tasks=3, steps=5, batch=3, permute="labels", scenario="domain")
    assert evaluate.chosen(1, on, Training()) == [1]
    assert evaluate.chosen(1, on, Training(evaluate="all")) == [0, 1]


def test_accuracy_is_the_share_of_right_answers_whatever_the_batch():
    made = learner()
    made.model.eval()
    task = made.stream[0]
    x, y = task.test.take(slice(None))
    wanted = float((made.model(x, task.head).argmax(1) == y).double().mean())
    for batch in (1, 7, 1000):
        assert evaluate.accuracy(made.method, task, batch, nullcontext()) == wanted
    assert math.isnan(evaluate.accuracy(made.method, task, 8, nullcontext(), "valid"))  # there is none


def test_the_mean_is_of_what_was_measured():
    assert evaluate.mean([0.5, math.nan, 1.0]) == 0.75
    assert math.isnan(evaluate.mean([math.nan]))
    assert math.isnan(evaluate.mean([]))


def test_images_stored_class_by_class_are_judged_in_mixed_batches():
    """Norm layers that use the current batch see all classes at once: apart, each class would have the same mean."""
    labels = np.repeat([0, 1], 64)
    images = np.random.default_rng(0).integers(0, 60, (128, 1, 4, 4)) + 180 * labels[:, None, None, None]
    stored = Examples(images.astype(np.uint8), np.arange(128), labels)
    made = learner()
    task = replace(made.stream[0], test=stored, valid=stored, train=stored)
    norm = networks.norms.make_norm("batch", 1, affine=False).eval()

    def predict(x, task):
        brighter = norm(x.flatten(1).mean(1, keepdim=True))
        return torch.cat([-9 * brighter, 9 * brighter], dim=1)

    made.method.predict = predict
    for on in ("test", "valid"):
        assert evaluate.accuracy(made.method, task, 16, nullcontext(), on) == 1.0
    assert validation_loss(made.method, [task], 16, nullcontext()) < 0.01
    for count in (64, 128, None):
        assert all(0 < y.sum() < len(y) for _, y in made.method.sample(task, count, "test"))
