"""A small world for the tests of methods: three or more tasks of blobs, an MLP and a convolutional network, and a loop
that calls the hooks in the order base.py documents, with a place to look in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from drcl.lab import networks, streams
from drcl.lab.data.base import DataSet, Split
from drcl.lab.methods.base import Batch, Method, Setting, Where
from drcl.lab.networks import Network
from drcl.lab.streams import Stream, Task

MLP: dict[str, Any] = {"kind": "mlp", "hidden": [12, 10]}
CNN: dict[str, Any] = {"kind": "cnn", "channels": [4, 6], "hidden": 12}
NETWORKS = {"mlp": MLP, "cnn": CNN}


def data(classes: int = 6, per_class: int = 12, side: int = 8, seed: int = 0) -> DataSet:
    """Each class is a pattern with noise, so there is something to learn and to forget."""
    rng = np.random.default_rng(seed)
    patterns = rng.integers(0, 256, (classes, 1, side, side))
    labels = np.tile(np.arange(classes), per_class)

    def split(salt: int) -> Split:
        noise = np.random.default_rng([seed, salt]).normal(0, 60, (len(labels), 1, side, side))
        return Split(np.clip(patterns[labels] + noise, 0, 255).astype(np.uint8), labels)

    return DataSet("blobs", split(1), split(2), tuple(f"class {c}" for c in range(classes)))


def stream(tasks: int = 3, scenario: str = "task", **how: Any) -> Stream:
    return streams.class_split(data(2 * tasks, **how), seed=0, classes_per_task=2, scenario=scenario)


def permuted(tasks: int = 3, **how: Any) -> Stream:
    return streams.permuted_inputs(data(4, **how), seed=0, tasks=tasks)


class Walk:
    """``Walk(method, stream, spec).run()``; `after_task(walk, task)` and `after_step(walk)` may look around."""

    def __init__(self, method: Method, tasks: Stream, spec: Any = MLP, seed: int = 0, **setting: Any) -> None:
        self.stream, self.method, self.seed = tasks, method, seed
        given = {"lr": 0.05, "momentum": 0.0, "batch": 8} | setting
        heads, shape = tasks.heads, tasks.shape
        self.setting = Setting(tasks.scenario, len(tasks), heads, shape, seed, **given)
        self.model: Network = method.build(networks.build(spec, tasks, seed), self.setting)
        self.accuracy: list[list[float]] = []

    def run(
        self,
        epochs: int = 2,
        after_task: Callable[[Walk, Task], None] | None = None,
        after_step: Callable[[Walk], None] | None = None,
    ) -> Walk:
        torch.manual_seed(self.seed)
        for task in self.stream:
            self.task(task, epochs, after_step)
            self.accuracy.append([self.test(old) for old in self.stream[: task.index + 1]])
            if after_task is not None:
                after_task(self, task)
        return self

    def task(self, task: Task, epochs: int, after_step: Callable[[Walk], None] | None = None) -> None:
        method, at = self.method, self.method.at
        at.task, at.stage = task.index, 0
        self.model.begin_task(task)
        method.before_task(task)
        for stage in range(method.stages):
            at.stage, at.step = stage, 0
            at.batches = -(-len(task.train) // self.setting.batch)
            at.steps = epochs * at.batches
            method.before_stage(task, stage)
            optimizer = method.optimizer(task)
            self.model.train()
            for epoch in range(epochs):
                for number, (x, y) in enumerate(task.train.batches(self.setting.batch, seed=self.seed, epoch=epoch)):
                    at.epoch, at.batch = epoch, number
                    self.step(optimizer, Batch(x, y, task.head))
                    if after_step is not None:
                        after_step(self)
                    at.step += 1
        self.model.eval()
        method.after_task(task)
        self.model.end_task(task)
        method.at = Where(task=task.index + 1)

    def step(self, optimizer: torch.optim.Optimizer, batch: Batch) -> None:
        method = self.method
        batch = method.before_step(batch)

        def closure() -> torch.Tensor:
            for p in self.model.parameters():
                p.grad = None
            loss = method.loss(batch)
            loss.backward()
            method.after_backward()
            return loss.detach()

        assert torch.isfinite(method.step(optimizer, closure))
        method.after_step()

    @torch.no_grad()
    def logits(self, task: Task) -> torch.Tensor:
        self.model.eval()
        with self.method.deployed():
            return self.method.predict(task.test.take(slice(None))[0], task)

    def test(self, task: Task) -> float:
        return float((self.logits(task).argmax(1) == torch.from_numpy(task.test.labels)).double().mean())


def weights(model: Network) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def plain_training(tasks: Stream, spec: Any, start: dict[str, torch.Tensor], lr: float = 0.05, **how: Any) -> Walk:
    """Fine-tuning from given weights, to compare a method with its protection switched off against."""
    from drcl.lab.methods.sgd import SGD

    walk = Walk(SGD(), tasks, spec, lr=lr, **how)
    with torch.no_grad():
        for name, p in walk.model.named_parameters():
            p.copy_(start[name])
    return walk.run()
