"""A stream that is learned in a few steps, and a learner on it."""

from __future__ import annotations

import numpy as np
import torch

from drcl.lab import networks, streams
from drcl.lab.data.base import DataSet, Split
from drcl.lab.methods.base import Method
from drcl.lab.methods.sgd import SGD
from drcl.lab.training.budget import Plan
from drcl.lab.training.learner import Learner
from drcl.lab.training.settings import Training

PLAN = Plan(epochs=2, batch=8, lr=0.1, momentum=0.9)


def blobs(classes: int = 4, train: int = 24, test: int = 10, seed: int = 0) -> DataSet:
    """Images of a class are noise about a pattern of its own: easy, and learned in a few steps."""
    rng = np.random.default_rng(seed)
    patterns = rng.integers(40, 215, (classes, 1, 4, 4))

    def split(count: int) -> Split:
        labels = np.tile(np.arange(classes), count)
        images = np.clip(patterns[labels] + rng.normal(0, 12, (len(labels), 1, 4, 4)), 0, 255).astype(np.uint8)
        return Split(images, labels)

    return DataSet("blobs", split(train), split(test), tuple(map(str, range(classes))))


def stream(scenario: str = "task", tasks: int = 2, **options) -> streams.Stream:
    return streams.class_split(blobs(2 * tasks), seed=1, classes_per_task=2, scenario=scenario, **options)


def learner(method: Method | None = None, on: streams.Stream | None = None, plan: Plan = PLAN, **options) -> Learner:
    on = on or stream()
    model = networks.build({"kind": "mlp", "hidden": [6], **options.pop("model", {})}, on, seed=5)
    watcher = options.pop("watcher", None)
    return Learner(on, model, method or SGD(), plan, Training(**options), seed=7, watcher=watcher)


def weights(model) -> dict[str, torch.Tensor]:
    return {name: t.clone() for name, t in model.state_dict().items()}
