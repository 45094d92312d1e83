"""One training step, and the sums over steps that a training curve is made of."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from drcl.lab.common import parallel
from drcl.lab.methods.base import Batch, Method
from drcl.lab.training.cost import Cost
from drcl.lab.training.samples import Look


class Running:
    """Sums over the steps since the last point of the curve, kept as tensors so that no step waits for them."""

    def __init__(self, device: torch.device) -> None:
        self.loss = torch.zeros((), device=device)
        self.hits = torch.zeros((), device=device, dtype=torch.int64)
        self.steps = self.images = 0
        self.last = math.nan  # the mean loss of the last point
        self.task = {"hits": 0, "images": 0, "norm": 0.0, "steps": 0}  # over the whole task

    def add(self, loss: Tensor, hits: Tensor | None, images: int) -> None:
        self.loss += loss
        self.steps += 1
        if hits is not None:
            self.hits += hits
            self.images += images

    def point(self) -> tuple[float, float]:
        """Mean loss and share of right answers since the last point; then start again from zero."""
        loss = float(parallel.total(self.loss)) / self.steps if self.steps else math.nan
        hits = int(parallel.total(self.hits)) if self.images else 0
        accuracy = hits / self.images if self.images else math.nan
        self.task["hits"] += hits
        self.task["images"] += self.images
        self.loss.zero_()
        self.hits.zero_()
        self.steps, self.images, self.last = 0, 0, loss
        return loss, accuracy

    def glance(self) -> float:
        """Mean loss so far, in this process only."""
        return float(self.loss) / self.steps * parallel.world().size if self.steps else self.last

    def online_accuracy(self) -> float:
        return self.task["hits"] / self.task["images"] if self.task["images"] else math.nan

    def state_dict(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        device = self.loss.device
        self.__dict__.update(state)
        self.loss, self.hits = self.loss.to(device), self.hits.to(device)


class Step:
    """``step(batch)``: hooks, gradient, optimizer, in the order every method can rely on."""

    def __init__(
        self,
        method: Method,
        optimizer: torch.optim.Optimizer,
        cast: AbstractContextManager[object],
        running: Running,
        cost: Cost,
        clip: float | None = None,
        look: Look | None = None,
    ) -> None:
        self.method, self.optimizer, self.cast, self.running, self.cost = method, optimizer, cast, running, cost
        self.clip, self.look = clip, look
        self.parameters = list(method.model.parameters())
        self.device, self.online = method.setting.device, method.setting.online
        self.here = parallel.world()

    def __call__(self, batch: Batch) -> None:
        if self.device.type != "cpu":
            head = batch.head if isinstance(batch.head, int) else batch.head.to(self.device)
            batch = Batch(batch.x.to(self.device), batch.y.to(self.device), head)
        if self.look is None or not self.look.wanted():
            self._take(batch)
            return
        with self.look(batch, self.running.task):
            self._take(batch)

    def _take(self, batch: Batch) -> None:
        method, here = self.method, self.here
        images = own = len(batch)
        batch = method.before_step(batch)
        whole, share = len(batch), 1.0
        if here.size > 1:
            part = here.share(whole)
            batch, own = batch.rows(part), max(0, min(own, part.stop) - part.start)
            share = len(batch) / whole
        hits: Tensor | None = None
        evaluations = 0

        def closure() -> Tensor:
            nonlocal hits, evaluations
            for p in self.parameters:
                p.grad = None
            if len(batch):
                with self.cast:
                    loss = method.loss(batch)
                loss.backward()
            else:  # fewer images than processes
                loss = torch.zeros((), device=self.device)
            if here.size > 1:
                parallel.sum_gradients(self.parameters, share)
            method.after_backward()
            if self.clip is not None:
                nn.utils.clip_grad_norm_([p for p in self.parameters if p.grad is not None], self.clip)
            if self.online and evaluations == 0 and method.logits is not None:
                hits = (method.logits[:own].argmax(1) == batch.y[:own]).sum()
            evaluations += 1
            return loss.detach()

        loss = method.step(self.optimizer, closure)
        method.after_step()
        self.cost.gradient_evaluations += evaluations
        self.running.add(loss if share == 1.0 else loss * share, hits, images)
