"""Every measure against arithmetic done by hand; the arithmetic stands beside the number."""

import copy
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from drcl.lab.runs import metrics
from drcl.lab.runs.metrics import Undefined

NaN = math.nan

# Three tasks. Task 1 goes 0.9 -> 0.95 -> 0.6 (it got better before it was forgotten), task 2 goes 0.8 -> 0.7.
R = np.array(
    [
        [0.90, 0.20, 0.10],
        [0.95, 0.80, 0.30],
        [0.60, 0.70, 0.85],
    ]
)


def test_average_accuracy():
    # (0.60 + 0.70 + 0.85) / 3 = 2.15 / 3
    assert metrics.average_accuracy(R) == pytest.approx(2.15 / 3)


def test_backward_transfer():
    # ((0.60 - 0.90) + (0.70 - 0.80)) / 2 = (-0.30 - 0.10) / 2
    assert metrics.backward_transfer(R) == pytest.approx(-0.20)


def test_forgetting_from_the_best():
    # task 1: max(0.90, 0.95) - 0.60 = 0.35; task 2: 0.80 - 0.70 = 0.10; mean 0.225
    assert metrics.forgetting(R) == pytest.approx(0.225)
    assert metrics.forgetting(R, kind="max") == pytest.approx(0.225)


def test_forgetting_from_the_first_is_minus_backward_transfer():
    # ((0.90 - 0.60) + (0.80 - 0.70)) / 2
    assert metrics.forgetting(R, kind="first") == pytest.approx(0.20)


def test_forgetting_counting_accuracy_before_training():
    M = R.copy()
    M[0, 1] = 0.90  # task 2 was better before it was trained
    # task 1: 0.35 as above; task 2: max(0.90, 0.80) - 0.70 = 0.20; mean 0.275. The default is as before.
    assert metrics.forgetting(M, kind="ever") == pytest.approx(0.275)
    assert metrics.forgetting(M) == pytest.approx(0.225)


def test_forgetting_is_negative_where_later_tasks_help():
    # 0.5 - 0.7
    assert metrics.forgetting([[0.5, NaN], [0.7, 0.9]]) == pytest.approx(-0.2)


def test_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="kind='best'; choose"):
        metrics.forgetting(R, kind="best")


def test_accuracy_and_forgetting_curves():
    # 0.90; (0.95 + 0.80) / 2 = 0.875; 2.15 / 3
    assert metrics.accuracy_curve(R) == pytest.approx([0.90, 0.875, 2.15 / 3])
    # nothing before task 1; after task 2: 0.90 - 0.95 = -0.05; after task 3: 0.225
    first, *rest = metrics.forgetting_curve(R)
    assert math.isnan(first)
    assert rest == pytest.approx([-0.05, 0.225])


def test_incremental_accuracy():
    # (0.90 + 0.875 + 0.716666...) / 3
    assert metrics.incremental_accuracy(R) == pytest.approx((0.90 + 0.875 + 2.15 / 3) / 3)


def test_learning_accuracy():
    # (0.90 + 0.80 + 0.85) / 3
    assert metrics.learning_accuracy(R) == pytest.approx(0.85)


def test_forward_transfer():
    # untrained 0.1, 0.1, 0.25: ((0.20 - 0.10) + (0.30 - 0.25)) / 2 = 0.075
    assert metrics.forward_transfer(R, [0.1, 0.1, 0.25]) == pytest.approx(0.075)


def test_forward_transfer_needs_something_to_compare_with():
    value = metrics.forward_transfer(R)
    assert math.isnan(value)
    assert "untrained" in value.reason
    hole = metrics.forward_transfer(R, [0.1, NaN, 0.2])
    assert "untrained network on task 2" in hole.reason
    with pytest.raises(ValueError, match="each of the 3 tasks"):
        metrics.forward_transfer(R, [0.1])


def test_group_forgetting_counts_only_learned_members():
    # after task 3 (index 2), group {1, 2}: 0.35 and 0.10, mean 0.225
    assert metrics.group_forgetting(R, [0, 1], after=2) == pytest.approx(0.225)
    # after task 2, group {1, 3}: task 3 is not learned, so only 0.90 - 0.95 = -0.05, not half of it
    assert metrics.group_forgetting(R, [0, 2], after=1) == pytest.approx(-0.05)
    # group {2}: 0.80 - 0.70
    assert metrics.group_forgetting(R, [1], after=2) == pytest.approx(0.10)


def test_group_forgetting_of_nothing_learned_is_undefined():
    value = metrics.group_forgetting(R, [1, 2], after=1)
    assert math.isnan(value)
    assert value.reason == "no task of the group was learned before task 2"
    with pytest.raises(ValueError, match="task 3 is not one of the 3 tasks"):
        metrics.group_forgetting(R, [3], after=1)


@settings(max_examples=50, deadline=None)
@given(arrays(float, st.integers(2, 7).map(lambda n: (n, n)), elements=st.floats(0, 1)))
def test_learning_accuracy_identity(matrix):
    T = len(matrix)
    identity = metrics.average_accuracy(matrix) - metrics.backward_transfer(matrix) * (T - 1) / T
    assert metrics.learning_accuracy(matrix) == pytest.approx(identity, abs=1e-12)


@settings(max_examples=50, deadline=None)
@given(arrays(float, st.integers(2, 7).map(lambda n: (n, n)), elements=st.floats(0, 1)))
def test_relations_between_the_kinds_of_forgetting(matrix):
    first, best, ever = (metrics.forgetting(matrix, kind) for kind in ("first", "max", "ever"))
    assert first == pytest.approx(-metrics.backward_transfer(matrix), abs=1e-12)
    assert first <= best + 1e-12
    assert best <= ever + 1e-12
    everything = metrics.group_forgetting(matrix, range(len(matrix)), after=len(matrix) - 1)
    assert everything == pytest.approx(best, abs=1e-12)


@pytest.mark.parametrize(
    "measure",
    [
        metrics.average_accuracy,
        metrics.backward_transfer,
        metrics.forgetting,
        metrics.incremental_accuracy,
        metrics.learning_accuracy,
    ],
)
def test_a_hole_that_matters_is_undefined_and_named(measure):
    M = R.copy()
    M[2, :] = NaN
    value = measure(M)
    assert isinstance(value, Undefined)
    assert math.isnan(value)
    assert "after task 3 was not measured" in value.reason


def test_unseen_tasks_may_stay_unmeasured():
    lower = np.where(np.tri(3, dtype=bool), R, NaN)
    assert metrics.average_accuracy(lower) == pytest.approx(2.15 / 3)
    assert metrics.forgetting(lower) == pytest.approx(0.225)
    assert metrics.incremental_accuracy(lower) == pytest.approx((0.90 + 0.875 + 2.15 / 3) / 3)
    reason = metrics.forward_transfer(lower, [0.1] * 3).reason
    assert reason == "accuracy on task 2 after task 1 was not measured (the first of 2 missing entries)"


def test_joint_training_has_a_last_row_only():
    M = np.full((3, 3), NaN)
    M[2] = [0.9, 0.8, 0.7]
    assert metrics.average_accuracy(M) == pytest.approx(0.8)
    assert math.isnan(metrics.backward_transfer(M))


def test_long_streams_are_not_slow():
    T = 400
    drops = np.tril(np.full((T, T), 0.5)) + 0.25 * np.eye(T)  # each task loses 0.25 once the next is learned
    curve = metrics.forgetting_curve(drops)
    assert curve[1:] == pytest.approx([0.25] * (T - 1))
    harmonic = sum(1 / t for t in range(1, T + 1))  # after t tasks the newest adds 0.25 / t
    assert metrics.incremental_accuracy(drops) == pytest.approx(0.5 + 0.25 * harmonic / T)


def test_one_task_has_no_past():
    assert metrics.average_accuracy([[0.7]]) == pytest.approx(0.7)
    for measure in (metrics.backward_transfer, metrics.forgetting):
        assert "only one task" in measure([[0.7]]).reason


@pytest.mark.parametrize("bad", [[], [[]], [0.1, 0.2], [[0.1, 0.2]]])
def test_a_matrix_that_is_not_square_is_refused(bad):
    with pytest.raises(ValueError, match="square accuracy matrix"):
        metrics.average_accuracy(bad)


# ---- steps, epochs and streams


def test_stiffness_of_steps():
    # (1 + 2 + 6) / 3
    assert metrics.step_stiffness([1.0, 2.0, 6.0]) == pytest.approx(3.0)
    assert metrics.step_stiffness([]).reason == "no training step was taken"


def test_after_one_epoch_accuracy():
    # (0.5 + 0.7) / 2
    assert metrics.after_one_epoch_accuracy([0.5, 0.7]) == pytest.approx(0.6)
    assert "task 2" in metrics.after_one_epoch_accuracy([0.5, NaN]).reason
    assert math.isnan(metrics.after_one_epoch_accuracy([]))


def test_online_accuracy_and_forgetting():
    correct = [1, 1, 0, 1, 0, 0, 1, 1]
    # windows 4, 2, 2: 3/4, 0/2, 2/2
    per_task = metrics.online_accuracy(correct, [4, 2, 2])
    assert per_task == pytest.approx([0.75, 0.0, 1.0])
    # (0.75 - 0) + (0 - 1) = -0.25
    assert metrics.online_forgetting(per_task) == pytest.approx(-0.25)
    assert math.isnan(metrics.online_accuracy([True], [1, 0])[1])
    with pytest.raises(ValueError, match="add up to 5"):
        metrics.online_accuracy(correct, [5])


def test_online_plasticity():
    # 1 - 0.5/2 = 0.75; 1 - 3/1 < 0 -> 0; 1 - 0/1 = 1; before 0: 1 - 1e-8/1e-8 = 0; mean 1.75 / 4
    assert metrics.online_plasticity([2, 1, 1, 0], [0.5, 3, 0, 1e-8]) == pytest.approx(1.75 / 4)
    assert metrics.online_plasticity([], []).reason == "no update was made"
    assert metrics.online_plasticity([1.0], [math.inf]).reason == "a loss was not finite"


# ---- summary


def test_summary_holds_values_and_reasons_and_becomes_json():
    found = metrics.summary(R, stiffness=1.5, residual=None, seconds=12.0)
    assert found.values["average_accuracy"] == pytest.approx(2.15 / 3)
    assert found.values["stiffness"] == 1.5
    assert set(found.undefined) == {"forward_transfer", "residual"}
    text = json.dumps(found.as_json(), allow_nan=False)
    back = json.loads(text)
    assert back["residual"] is None
    assert back["undefined"]["residual"] == "it was not measured"
    assert back["backward_transfer"] == pytest.approx(-0.2)


def test_a_reason_survives_copying():
    value = copy.deepcopy(Undefined("because"))
    assert value.reason == "because"
    assert "because" in repr(value)
