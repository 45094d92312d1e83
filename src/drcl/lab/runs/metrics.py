"""Named measures of a continual learner, computed from the accuracy matrix or a stream of predictions.

They summarise runs and fill tables. ``R[i][j]`` is the test accuracy on task ``j``
after task ``i`` was finished, as a fraction, NaN where it was not measured; indices count from 0. A measure
that is not defined on its input is :class:`Undefined`: a NaN that carries the reason. It is never 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np


class Undefined(float):
    """NaN with a reason, so that an undefined value can be explained wherever it ends up."""

    reason: str

    def __new__(cls, reason: str) -> Undefined:
        value = super().__new__(cls, math.nan)
        value.reason = reason
        return value

    def __reduce__(self) -> tuple[type[Undefined], tuple[str]]:
        return (Undefined, (self.reason,))

    def __repr__(self) -> str:
        return f"Undefined({self.reason!r})"


def _square(matrix: Any) -> np.ndarray:
    R = np.asarray(matrix, dtype=float)
    if R.ndim != 2 or R.shape[0] != R.shape[1] or R.shape[0] == 0:
        raise ValueError(
            f"matrix has shape {R.shape}; give the square accuracy matrix R[after task i][on task j], "
            "with NaN where nothing was measured"
        )
    return R


def _missing(R: np.ndarray, *entries: tuple[Any, Any]) -> Undefined | None:
    """The reason why a measure that reads these entries (rows, columns) has no value, or None."""
    holes = [
        (int(i), int(j))
        for rows, columns in entries
        if np.isnan(R[rows, columns]).any()
        for i, j in np.broadcast(rows, columns)
        if math.isnan(R[i, j])
    ]
    if not holes:
        return None
    i, j = holes[0]
    more = f" (the first of {len(holes)} missing entries)" if len(holes) > 1 else ""
    return Undefined(f"accuracy on task {j + 1} after task {i + 1} was not measured{more}")


def _diagonal(tasks: int) -> tuple[np.ndarray, np.ndarray]:
    return np.arange(tasks), np.arange(tasks)


def _last_row(R: np.ndarray, columns: int) -> tuple[int, np.ndarray]:
    return len(R) - 1, np.arange(columns)


_ONE_TASK = "there is only one task, so there is no earlier one to compare with"


# ---- the accuracy matrix


def average_accuracy(matrix: Any) -> float:
    """Mean accuracy over all tasks once the last one is learned: ``1/T sum_j R[T][j]``."""
    R = _square(matrix)
    missing = _missing(R, _last_row(R, len(R)))
    return missing if missing is not None else float(R[-1].mean())


def backward_transfer(matrix: Any) -> float:
    """How later tasks changed earlier ones: ``1/(T-1) sum_{j<T} (R[T][j] - R[j][j])``; below 0 is loss."""
    R = _square(matrix)
    T = len(R)
    if T < 2:
        return Undefined(_ONE_TASK)
    missing = _missing(R, _last_row(R, T - 1), _diagonal(T - 1))
    return missing if missing is not None else float((R[-1, :-1] - np.diag(R)[:-1]).mean())


def forgetting(matrix: Any, kind: Literal["max", "first", "ever"] = "max") -> float:
    """Mean loss of accuracy on the earlier tasks, measured from a task's reference accuracy.

    ``"max"``: the best it ever had between being learned and the last task, ``max_{j<=l<T} R[l][j]``.
    ``"first"``: what it had when it was just learned, ``R[j][j]``; this is ``-backward_transfer``.
    ``"ever"``: as ``"max"``, but accuracy measured before the task was trained counts as well.
    """
    R = _square(matrix)
    T = len(R)
    if kind not in ("max", "first", "ever"):
        raise ValueError(f"kind={kind!r}; choose 'max', 'first' or 'ever'")
    if T < 2:
        return Undefined(_ONE_TASK)
    losses = [_loss(R, j, T - 1, kind) for j in range(T - 1)]
    return _mean(losses)


def _loss(R: np.ndarray, task: int, after: int, kind: str) -> float:
    """Accuracy that ``task`` lost until ``after`` was finished (``task < after``)."""
    first, end = {"max": (task, after), "first": (task, task + 1), "ever": (0, after)}[kind]
    missing = _missing(R, (np.arange(first, end), task), (after, task))
    return missing if missing is not None else float(R[first:end, task].max() - R[after, task])


def _mean(values: Sequence[float]) -> float:
    for value in values:
        if math.isnan(value):
            return value
    return float(np.mean(values))


def forgetting_curve(matrix: Any, kind: Literal["max", "first", "ever"] = "max") -> list[float]:
    """Forgetting of the tasks before t, after each task t. The first is undefined: nothing came before."""
    R = _square(matrix)
    return [forgetting(R[: t + 1, : t + 1], kind) for t in range(len(R))]


def incremental_accuracy(matrix: Any) -> float:
    """A_inc, the mean over time of the accuracy on the tasks seen: ``1/T sum_t 1/t sum_{j<=t} R[t][j]``."""
    return _mean(accuracy_curve(matrix))


def accuracy_curve(matrix: Any) -> list[float]:
    """After each task t, the mean accuracy on the tasks seen so far, ``1/t sum_{j<=t} R[t][j]``."""
    R = _square(matrix)
    return [average_accuracy(R[: t + 1, : t + 1]) for t in range(len(R))]


def learning_accuracy(matrix: Any) -> float:
    """Mean accuracy of a task when it was just learned, ``1/T sum_j R[j][j]``: plasticity alone.

    It equals ``average_accuracy - backward_transfer * (T - 1) / T``.
    """
    R = _square(matrix)
    missing = _missing(R, _diagonal(len(R)))
    return missing if missing is not None else float(np.diag(R).mean())


def forward_transfer(matrix: Any, untrained: Sequence[float] | None = None) -> float:
    """How much earlier tasks helped a task that was not trained yet: ``1/(T-1) sum_{j>1} (R[j-1][j] - b[j])``.

    ``untrained`` is b, the accuracy of the freshly initialised network on each task.
    """
    R = _square(matrix)
    T = len(R)
    if T < 2:
        return Undefined(_ONE_TASK)
    if untrained is None:
        return Undefined("the accuracy of the untrained network, to compare with, was not measured")
    b = np.asarray(untrained, dtype=float)
    if b.shape != (T,):
        raise ValueError(f"untrained has shape {b.shape}; give one accuracy for each of the {T} tasks")
    missing = _missing(R, (np.arange(T - 1), np.arange(1, T)))
    if missing is not None:
        return missing
    if np.isnan(b[1:]).any():
        task = 1 + int(np.flatnonzero(np.isnan(b[1:]))[0])
        return Undefined(f"the accuracy of the untrained network on task {task + 1} was not measured")
    return float((np.diag(R, k=1) - b[1:]).mean())


def group_forgetting(matrix: Any, group: Iterable[int], after: int) -> float:
    """F_G(t): mean forgetting (``"max"``) of the tasks of ``group`` that were learned before task ``after``.

    Tasks of the group that come later are not counted, neither in the numerator nor in the denominator: as zeros
    they would make early values look better than they are. With all tasks in the group it is the cumulative
    average.
    """
    R = _square(matrix)
    members = sorted(set(group))
    outside = [k for k in [*members, after] if not 0 <= k < len(R)]
    if outside:
        raise ValueError(f"task {outside[0]} is not one of the {len(R)} tasks, which count from 0")
    learned = [k for k in members if k < after]
    if not learned:
        return Undefined(f"no task of the group was learned before task {after + 1}")
    return _mean([_loss(R, k, after, "max") for k in learned])


# ---- single steps, epochs and streams


def step_stiffness(step_norms: Sequence[float]) -> float:
    """Mean length of a single training step, ``mean_s |x_{s+1} - x_s|_2``: the reading for long streams."""
    return _mean(step_norms) if len(step_norms) else Undefined("no training step was taken")


def after_one_epoch_accuracy(accuracies: Sequence[float]) -> float:
    """AOA: mean over the tasks of the test accuracy after exactly one epoch on that task."""
    if not len(accuracies):
        return Undefined("accuracy after the first epoch of a task was not measured")
    for t, value in enumerate(accuracies):
        if math.isnan(value):
            return Undefined(f"accuracy after the first epoch of task {t + 1} was not measured")
    return float(np.mean(accuracies))


def online_accuracy(correct: Sequence[bool] | np.ndarray, lengths: Sequence[int]) -> list[float]:
    """Accuracy of predictions made before the update on each sample, per task window of the given lengths."""
    hits = np.asarray(correct, dtype=float)
    if hits.ndim != 1 or sum(lengths) != len(hits) or any(n < 0 for n in lengths):
        raise ValueError(f"lengths add up to {sum(lengths)} but there are {hits.size} predictions; they must agree")
    windows = np.split(hits, np.cumsum(lengths)[:-1])
    return [float(w.mean()) if len(w) else Undefined(f"task {t + 1} saw no sample") for t, w in enumerate(windows)]


def online_forgetting(per_task: Sequence[float]) -> float:
    """Sum of the drops of online accuracy from task to task, ``sum_k (A_k - A_{k+1}) = A_1 - A_K``."""
    if len(per_task) < 2:
        return Undefined(_ONE_TASK)
    for t in (0, len(per_task) - 1):
        if math.isnan(per_task[t]):
            return Undefined(f"online accuracy of task {t + 1} was not measured")
    return float(per_task[0] - per_task[-1])


def online_plasticity(loss_before: Sequence[float], loss_after: Sequence[float]) -> float:
    """Mean share of the loss that an update removed: ``max(0, 1 - after / max(before, 1e-8))``."""
    old, new = np.asarray(loss_before, dtype=float), np.asarray(loss_after, dtype=float)
    if old.shape != new.shape or old.ndim != 1:
        raise ValueError(f"{old.size} losses before and {new.size} after an update; give one pair for each step")
    if not old.size:
        return Undefined("no update was made")
    if not (np.isfinite(old).all() and np.isfinite(new).all()):
        return Undefined("a loss was not finite")
    return float(np.maximum(0.0, 1.0 - new / np.maximum(old, 1e-8)).mean())


# ---- all of them at once


@dataclass(frozen=True)
class Summary:
    """The measures of one run; ``undefined`` says why a NaN is one."""

    values: dict[str, float]
    undefined: dict[str, str]

    def as_json(self) -> dict[str, Any]:
        """For ``result.json``, where NaN does not exist: null, and the reasons under ``undefined``."""
        numbers = {name: None if math.isnan(value) else value for name, value in self.values.items()}
        return {**numbers, "undefined": dict(self.undefined)}


def summary(matrix: Any, untrained: Sequence[float] | None = None, **measured: float | None) -> Summary:
    """Every measure of the matrix, beside those ``measured`` elsewhere (``stiffness=...``, ``seconds=...``).

    A measured value that is None or NaN is kept as undefined, with its reason if it has one.
    """
    values: dict[str, float] = {
        "average_accuracy": average_accuracy(matrix),
        "backward_transfer": backward_transfer(matrix),
        "forgetting": forgetting(matrix),
        "incremental_accuracy": incremental_accuracy(matrix),
        "learning_accuracy": learning_accuracy(matrix),
        "forward_transfer": forward_transfer(matrix, untrained),
    }
    for name, value in measured.items():
        values[name] = Undefined("it was not measured") if value is None else value
    reasons = {
        name: getattr(value, "reason", "it was not a number") for name, value in values.items() if math.isnan(value)
    }
    return Summary(values, reasons)
