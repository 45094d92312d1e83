"""The diagonal Fisher information of a task's own data, as several methods need it when a task ends."""

from __future__ import annotations

from torch import Tensor, nn

from drcl.importance import Fisher, Labels
from drcl.lab.common import seeds
from drcl.lab.methods._estimators import Reduced
from drcl.lab.methods.base import Method
from drcl.lab.streams import Task
from drcl.options import HELP

LABELS = HELP["labels"]


def diagonal(
    method: Method, task: Task, parameters: dict[str, nn.Parameter], samples: int, labels: Labels, word: str = "fisher"
) -> dict[str, Tensor]:
    """Mean squared gradient of single examples, at the weights the network holds now; counted as what it cost."""
    count = min(samples, len(task.train))
    method.gradients += -(-count // method.setting.batch)
    seed = seeds.derive(method.setting.seed, method.name, word, task.index)
    estimator = Reduced(Fisher(samples=count, labels=labels, seed=seed))
    batches = list(method.sample(task, count, word))
    with method.one_by_one(task, batches):
        return estimator.estimate(
            method.model, batches, parameters, lambda model, batch: (model(batch[0], task.head), batch[1])
        )
