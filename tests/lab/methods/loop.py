"""A loop that calls a method's hooks in their documented order, small enough to stop, look and go on anywhere."""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from drcl.lab import networks, streams
from drcl.lab.data.base import DataSet, Split
from drcl.lab.methods.base import Batch, Method, Setting, Where
from drcl.lab.methods.sgd import SGD
from drcl.lab.networks import Network
from drcl.lab.streams import Stream, Task
from drcl.lab.streams.view import View

MLP: dict[str, Any] = {"kind": "mlp", "hidden": [12, 10]}
CNN: dict[str, Any] = {"kind": "cnn", "channels": [4, 6], "hidden": 12}
SPECS = {"mlp": MLP, "cnn": CNN}
KINDS = tuple(SPECS)


def toy_stream(scenario: str = "task", tasks: int = 3, per_class: int = 12, seed: int = 0, side: int = 8) -> Stream:
    """Two noisy prototypes per task: learnt in a few steps, and forgotten as quickly."""
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


def network(kind: str | dict[str, Any], stream: Stream, seed: int = 0) -> Network:
    return networks.build(SPECS[kind] if isinstance(kind, str) else kind, stream, seed=seed)


class Walk:
    """Train `method` on `stream`; `accuracy` grows by one row per task, each measured on all tasks seen."""

    def __init__(
        self,
        method: Method,
        stream: Stream,
        kind: str | dict[str, Any] = "mlp",
        epochs: int = 2,
        seed: int = 0,
        **setting: Any,
    ) -> None:
        self.method, self.stream, self.epochs, self.seed = method, stream, epochs, seed
        given = {"lr": 0.05, "momentum": 0.9, "batch": 8} | setting
        self.setting = Setting(stream.scenario, len(stream), stream.heads, stream.shape, seed, **given)
        self.model = method.build(network(kind, stream, seed), self.setting)
        self.accuracy: list[list[float]] = []
        self.losses: list[float] = []
        self.saved: bytes = b""

    def run(
        self,
        watch: Callable[[str, Batch], None] | None = None,
        after_step: Callable[[Walk], None] | None = None,
        after_task: Callable[[Walk, Task], None] | None = None,
        stop: tuple[int, int] | None = None,
        resume: bytes | None = None,
    ) -> Walk:
        """`watch` is told each moment of a step by name; `stop` (task, step) saves and returns, `resume` goes on."""
        torch.manual_seed(self.seed)

        def look(moment: str, batch: Batch) -> None:
            if watch is not None:
                watch(moment, batch)
            if after_step is not None and moment == "stepped":
                after_step(self)

        held = None if resume is None else self._load(resume)
        for task in self.stream[0 if held is None else held["at"].task :]:
            for optimizer, batch in self._steps(task, self.epochs, held):
                if stop == (self.method.at.task, self.method.at.step):
                    self.saved = self._save(optimizer)
                    return self
                self._step(optimizer, batch, look)
            held = None
            self.accuracy.append([self.test(seen) for seen in self.stream[: task.index + 1]])
            if after_task is not None:
                after_task(self, task)
        return self

    def task(self, task: Task, epochs: int) -> None:
        """One task from its first hook to its last."""
        for optimizer, batch in self._steps(task, epochs):
            self._step(optimizer, batch, lambda moment, batch: None)

    def _steps(
        self, task: Task, epochs: int, held: dict[str, Any] | None = None
    ) -> Iterator[tuple[torch.optim.Optimizer, Batch]]:
        """The hooks around the steps of a task, and what each step needs."""
        method, batches = self.method, -(-len(task.train) // self.setting.batch)
        method.at = Where(task.index)
        self.model.begin_task(task)
        if held is None:
            method.before_task(task)
        for stage in range(held["at"].stage if held else 0, method.stages):
            steps = max(1, round(epochs * batches * method.stage_share(stage)))
            method.at = Where(task.index, stage, batches=batches, steps=steps)
            if held is None:
                method.before_stage(task, stage)
            optimizer = method.optimizer(task)
            if held is not None:
                optimizer.load_state_dict(held["optimizer"])
            begin, held = (held["at"].step if held else 0), None
            for epoch in range(begin // batches, epochs):
                start = max(begin - epoch * batches, 0)
                drawn = task.train.batches(self.setting.batch, seed=self.seed, epoch=epoch, start=start)
                for number, (x, y) in enumerate(drawn, start):
                    step = epoch * batches + number
                    if step < steps:
                        method.at = Where(task.index, stage, step, epoch, number, batches, steps)
                        yield optimizer, Batch(x, y, task.head)
        self.model.eval()
        method.after_task(task)
        self.model.end_task(task)

    def _step(self, optimizer: torch.optim.Optimizer, batch: Batch, look: Callable[[str, Batch], None]) -> None:
        method = self.method
        self.model.train()
        whole = method.before_step(batch)

        def closure() -> torch.Tensor:
            self.model.zero_grad(set_to_none=True)
            loss = method.loss(whole)
            loss.backward()
            look("backward", whole)
            method.after_backward()
            look("edited", whole)
            return loss.detach()

        self.losses.append(float(method.step(optimizer, closure)))
        assert math.isfinite(self.losses[-1])
        method.after_step()
        look("stepped", whole)

    @torch.no_grad()
    def logits(self, task: Task) -> torch.Tensor:
        self.model.eval()
        with self.method.deployed():
            return self.method.predict(task.test.take(slice(None))[0], task)

    def test(self, task: Task) -> float:
        return float((self.logits(task).argmax(1) == torch.from_numpy(task.test.labels)).double().mean())

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

    def _load(self, saved: bytes) -> dict[str, Any]:
        held: dict[str, Any] = torch.load(io.BytesIO(saved), weights_only=False)
        self.model.load_state_dict(held["model"])
        self.method.load_state_dict(held["method"])
        self.accuracy = held["accuracy"]
        return held


def weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def assert_same_weights(a: torch.nn.Module, b: torch.nn.Module) -> None:
    for (name, p), q in zip(a.named_parameters(), b.parameters(), strict=True):
        assert torch.equal(p, q), name


def assert_resumes(make: Callable[[], Method], kind: str | dict[str, Any], scenario: str = "task", **how: Any) -> None:
    """Stopped in the middle of the second task and taken up by new objects, it ends in the same bits."""
    stream = toy_stream(scenario)
    whole = Walk(make(), stream, kind, **how).run()
    part = Walk(make(), stream, kind, **how).run(stop=(1, 4))
    rest = Walk(make(), stream, kind, **how).run(resume=part.saved)
    assert_same_weights(whole.model, rest.model)
    assert whole.accuracy == rest.accuracy
    assert [len(row) for row in whole.accuracy] == [1, 2, 3]


def plain_training(tasks: Stream, kind: str, start: dict[str, torch.Tensor], **how: Any) -> Walk:
    """Fine-tuning from given weights, to compare a method with its protection switched off against."""
    walk = Walk(SGD(), tasks, kind, **how)
    with torch.no_grad():
        for name, p in walk.model.named_parameters():
            p.copy_(start[name])
    return walk.run()


def assert_trains_as_sgd_does(method: Method, kind: str, **how: Any) -> None:
    """A method with everything switched off that makes it one, bit for bit."""
    walk = Walk(method, toy_stream(), kind, **how)
    start = weights(walk.model)
    walk.run()
    plain, now = plain_training(toy_stream(), kind, start, **how), weights(walk.model)
    for name, p in plain.model.named_parameters():
        assert torch.equal(now[name], p), name


def outputs(layer: nn.Module, columns: torch.Tensor) -> torch.Tensor:
    """A layer applied to input vectors, the last entry of which belongs to the bias."""
    assert isinstance(layer, nn.Linear | nn.Conv2d)
    assert layer.bias is not None
    return torch.cat([layer.weight.flatten(1), layer.bias[:, None]], 1) @ columns
