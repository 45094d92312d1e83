"""Importance from a task's own data, as several methods need it when a task ends."""

from __future__ import annotations

from torch import Tensor, nn

from drcl.importance import Fisher, Importance, Labels
from drcl.lab.common import seeds
from drcl.lab.methods._estimators import Reduced
from drcl.lab.methods.base import Method
from drcl.lab.streams import Task
from drcl.options import HELP
from drcl.per_sample.plan import Forward

LABELS = HELP["labels"]


def number_of(samples: int | None, task: Task) -> int:
    """How many of a task's training examples are used; None: all."""
    return len(task.train) if samples is None else min(samples, len(task.train))


def estimate(
    method: Method,
    estimator: Importance,
    task: Task,
    parameters: dict[str, nn.Parameter],
    count: int,
    word: str,
    forward: Forward | None = None,
) -> dict[str, Tensor]:
    """Importance by `estimator` from `count` examples of the task, at the network's current weights. Its cost is
    counted. `word` names the draw."""
    method.gradients += -(-count // method.setting.batch)
    batches = list(method.sample(task, count, word))
    answer: Forward = forward or (lambda model, batch: (model(batch[0], task.head), batch[1]))
    with method.one_by_one(task, batches):
        return Reduced(estimator).estimate(method.model, batches, parameters, answer)


def diagonal(
    method: Method, task: Task, parameters: dict[str, nn.Parameter], samples: int, labels: Labels, word: str = "fisher"
) -> dict[str, Tensor]:
    """The diagonal Fisher information: the mean squared gradient of single examples."""
    count = number_of(samples, task)
    seed = seeds.derive(method.setting.seed, method.name, word, task.index)
    return estimate(method, Fisher(samples=count, labels=labels, seed=seed), task, parameters, count, word)
