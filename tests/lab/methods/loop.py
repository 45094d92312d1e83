"""A loop that calls a method's hooks in their documented order, small enough to stop, look and go on anywhere."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from drcl.lab import networks, streams
from drcl.lab.data.base import DataSet, Split
from drcl.lab.methods.base import Batch, Method, Setting, Where
from drcl.lab.networks import Network
from drcl.lab.pixels import View
from drcl.lab.streams import Stream

KINDS = ("mlp", "cnn")
SPECS: dict[str, dict[str, Any]] = {
    "mlp": {"kind": "mlp", "hidden": [12, 10]},
    "cnn": {"kind": "cnn", "channels": [3, 4], "hidden": 8},
}


def toy_stream(scenario: str = "task", tasks: int = 3, per_class: int = 12, seed: int = 0, side: int = 8) -> Stream:
    """Two noisy prototypes a task: learnt in a few steps, and forgotten as quickly."""
    rng = np.random.default_rng(seed)
    shape, classes = (1, side, side), 2 * tasks
    prototypes = rng.integers(40, 216, (classes, *shape))

    def part(count: int) -> Split:
        labels = np.tile(np.arange(classes), count)
        noise = rng.normal(0, 30, (len(labels), *shape))
        return Split(np.clip(prototypes[labels] + noise, 0, 255).astype(np.uint8), labels)

    data = DataSet("toy", part(per_class), part(6), tuple(f"class {c}" for c in range(classes)))
    view = View(mean=(0.5,), std=(0.2,))
    if scenario == "domain":
        return streams.permuted_inputs(data, seed=seed, tasks=tasks, view=view)
    return streams.class_split(data, seed=seed, classes_per_task=2, scenario=scenario, view=view)  # type: ignore[arg-type]


def network(kind: str, stream: Stream, seed: int = 0) -> Network:
    return networks.build(SPECS[kind], stream, seed=seed)


@dataclass
class Walk:
    """Train `method` on `stream`; `accuracy` grows by a row a task, each measured on all tasks seen."""

    method: Method
    stream: Stream
    kind: str = "mlp"
    epochs: int = 2
    batch: int = 8
    lr: float = 0.05
    momentum: float = 0.9
    optimizer: str = "sgd"
    seed: int = 0

    def __post_init__(self) -> None:
        stream = self.stream
        setting = Setting(
            stream.scenario, len(stream), stream.heads, stream.shape, self.seed, self.lr, self.momentum, self.batch,
            optimizer=self.optimizer,
        )  # fmt: skip
        self.model = self.method.build(network(self.kind, stream, self.seed), setting)
        self.accuracy: list[list[float]] = []
        self.losses: list[float] = []
        self.saved: bytes = b""

    def run(
        self,
        watch: Callable[[str, Batch], None] | None = None,
        stop: tuple[int, int] | None = None,
        resume: bytes | None = None,
    ) -> Walk:
        """`watch` is called with the name of each moment of a step; `stop` (task, step) saves and returns."""
        method, model, begin = self.method, self.model, Where()
        held: dict[str, Any] | None = None
        if resume is not None:
            held = torch.load(io.BytesIO(resume), weights_only=False)
            model.load_state_dict(held["model"])
            method.load_state_dict(held["method"])
            begin, self.accuracy = held["at"], held["accuracy"]
        for task in self.stream:
            if task.index < begin.task:
                continue
            method.at = Where(task=task.index)
            fresh = held is None
            if fresh:
                model.begin_task(task)
                method.before_task(task)
                method.before_stage(task, 0)
            optimizer = method.optimizer(task)
            if held is not None:
                optimizer.load_state_dict(held["optimizer"])
            held, step = None, 0
            for epoch in range(self.epochs):
                batches = task.train.batches(self.batch, seed=self.seed, epoch=epoch)
                for number, (x, y) in enumerate(batches):
                    if fresh or step >= begin.step:
                        method.at = Where(task.index, 0, step, epoch, number, len(batches), self.epochs * len(batches))
                        if stop == (task.index, step):
                            self.saved = self._save(optimizer)
                            return self
                        self._step(optimizer, Batch(x, y, task.head), watch)
                    step += 1
            model.eval()
            method.after_task(task)
            model.end_task(task)
            self.accuracy.append([self._accuracy(seen) for seen in self.stream if seen.index <= task.index])
        return self

    def _step(self, optimizer: torch.optim.Optimizer, batch: Batch, watch: Callable[[str, Batch], None] | None) -> None:
        method, look = self.method, watch or (lambda moment, batch: None)
        self.model.train()
        whole = method.before_step(batch)

        def closure() -> torch.Tensor:
            self.model.zero_grad(set_to_none=True)
            loss = method.loss(whole)
            loss.backward()
            look("backward", whole)
            method.after_backward()
            look("edited", whole)
            return loss

        self.losses.append(float(method.step(optimizer, closure).detach()))
        method.after_step()
        look("stepped", whole)

    def _accuracy(self, task: streams.Task) -> float:
        self.model.eval()
        x, y = task.test.take(slice(None))
        with torch.no_grad(), self.method.deployed():
            return float((self.method.predict(x, task).argmax(1) == y).float().mean())

    def _save(self, optimizer: torch.optim.Optimizer) -> bytes:
        whole = {
            "model": self.model.state_dict(),
            "method": self.method.state_dict(),
            "optimizer": optimizer.state_dict(),
            "at": self.method.at,
            "accuracy": self.accuracy,
        }
        file = io.BytesIO()
        torch.save(copy.deepcopy(whole), file)
        return file.getvalue()


def weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def assert_same_weights(a: torch.nn.Module, b: torch.nn.Module) -> None:
    for (name, p), q in zip(a.named_parameters(), b.parameters(), strict=True):
        assert torch.equal(p, q), name


def assert_resumes(make: Callable[[], Method], kind: str, scenario: str = "task", **how: Any) -> None:
    """Stopped in the middle of the second task and taken up by new objects, it ends in the same bits."""
    stream = toy_stream(scenario)
    whole = Walk(make(), stream, kind, **how).run()
    part = Walk(make(), stream, kind, **how).run(stop=(1, 4))
    rest = Walk(make(), stream, kind, **how).run(resume=part.saved)
    assert_same_weights(whole.model, rest.model)
    assert whole.accuracy == rest.accuracy
    assert [len(row) for row in whole.accuracy] == [1, 2, 3]
