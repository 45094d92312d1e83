"""What all trainers share: how a task begins, is measured, and ends. Nothing here depends on a trainer."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from drcl.anchor import Anchor
from drcl.importance import Importance
from drcl.optimizer import DRCL
from drcl.per_sample.plan import Forward
from drcl.preserve import check_model
from drcl.retention import Retention
from drcl.splitting import plasticity


def inside(optimizer: Any) -> DRCL | None:
    """The DRCL inside a trainer's wrappers around optimizers; None if there is none."""
    while optimizer is not None and not isinstance(optimizer, DRCL):
        optimizer = getattr(optimizer, "optimizer", None)
    return optimizer


class Task:
    """One task of fine-tuning: what to protect, to measure and to save."""

    def __init__(
        self,
        anchor: Anchor | str | os.PathLike[str] | None,
        old: Iterable[Any] | None,
        probes: Retention | Mapping[str, Iterable[Any]] | None,
        importance: Importance | None,
        save: str | os.PathLike[str] | None,
        forward: Forward | None,
        options: dict[str, Any],
    ) -> None:
        if anchor is not None and old is not None:
            raise ValueError("give anchor= or old=, not both: an anchor already says what matters in the old data")
        if isinstance(anchor, str | os.PathLike):
            anchor = Anchor.load(anchor)
        if anchor is not None and not isinstance(anchor, Anchor):
            raise TypeError(f"anchor={anchor!r} must be a drcl.Anchor or the name of its file")
        if save is not None and not isinstance(save, str | os.PathLike):
            raise TypeError(f"save={save!r} must be the name of a file for the new anchor, or None")
        self.anchor, self.old, self.importance, self.save, self.forward = anchor, old, importance, save, forward
        self.retention = (
            probes if isinstance(probes, Retention) or probes is None else Retention(probes, forward=forward)
        )
        self.options = options
        self.begun = self.running = False
        self._optimizer: DRCL | None = None

    @property
    def optimizer(self) -> DRCL:
        if self._optimizer is None:
            raise RuntimeError("there is no optimizer before training begins")
        return self._optimizer

    def around(self, optimizer: Any, kind: type[DRCL] = DRCL) -> DRCL:
        """DRCL, with the given options, around the trainer's own optimizer."""
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(
                f"the trainer's optimizer has type {type(optimizer).__name__}, but DRCL wraps only torch optimizers: "
                "let the trainer make its own, or give it one such as torch.optim.AdamW"
            )
        return kind.around(optimizer, **self.options)

    def begin(
        self,
        model: nn.Module,
        optimizer: DRCL,
        resumed: bool,
        measured: Mapping[str, Any] | None = None,
        steps: float | None = None,
    ) -> None:
        """Before the first step: protect, unless a checkpoint already did, and measure.

        `steps`: how many the trainer will take, for strength="auto".
        """
        check_model(model, "begin(model, optimizer)")
        if self.begun and optimizer is not self._optimizer:
            raise RuntimeError("this callback has finished its task; make a new one for the next, with anchor= or old=")
        self._optimizer = optimizer
        if resumed and not optimizer.tasks and (self.anchor is not None or self.old is not None):
            raise ValueError(
                "the checkpoint has no state of DRCL, so it does not say what to protect; resume from one that was "
                "saved with this callback and its optimizer"
            )
        if not resumed and not self.begun:
            if self.anchor is not None:
                optimizer.protect(model, self.anchor)
            elif self.old is not None:
                optimizer.consolidate(model, self.old, self.importance, self.forward)
            if steps is not None and 0 < steps < math.inf:
                optimizer.progress.horizon = int(steps)
        if self.retention is not None and measured is not None and resumed:
            self.retention.load(measured)
        elif not self.begun:
            self.look(model, "before")
        self.begun = self.running = True

    def look(self, model: nn.Module, when: str) -> None:
        """Measure on the probes, unless the task has ended."""
        if self.retention is not None and (self.running or not self.begun):
            self.retention.measure(model, when, self.optimizer)

    @torch.no_grad()
    def settle(self) -> None:
        """Negotiate an unfinished proposal of several steps; otherwise it would not be deployed."""
        if self.optimizer.progress.steps_in_proposal:
            self.optimizer.train()
            plasticity.finish(self.optimizer)

    @torch.no_grad()
    def end(self, model: nn.Module, data: Any, loaded: bool = False, show: bool = True) -> None:
        """Leave the deployed weights in the model, print what was kept, and write an anchor of this task.

        `loaded`: the trainer has put the weights of an earlier checkpoint, which are deployed ones, into the model.
        """
        if loaded:
            for p, state in self.optimizer.protected():
                for key in {"z", "start"} & state.keys():
                    state[key].copy_(p)
        else:
            self.settle()
        self.optimizer.eval()
        self.look(model, "after")
        self.running = False
        if self.save is not None:
            self.consolidate(model, data, write=show)
        if self.retention is not None and show:
            print(self.retention)

    def consolidate(self, model: nn.Module, data: Any, write: bool = True) -> None:
        """Consolidate the task that ends; its anchor also records the measures on the probes."""
        self.optimizer.consolidate(model, data, self.importance, self.forward)
        if self.retention is not None:
            self.retention.record(self.optimizer)
        anchor = self.optimizer.anchor if self.save is not None else None  # all processes must gather their shards
        if anchor is not None and self.save is not None and write:
            anchor.save(self.save)


class Continues:
    """Protects a model's skills while a trainer teaches it something else.

    Args:
        anchor: what to protect: an Anchor, or the name of its file.
        old: without an anchor, batches of the old data; the model is consolidated on them before training.
        probes: batches by name, or a ``drcl.Retention``: measured before training, at evaluations, and at the end.
        importance: how to estimate importance, for ``old`` and ``save``; by default ``drcl.Kronecker()``.
        save: a file for the anchor of this task; at the end the model is consolidated on its training data.
        forward: ``forward(model, batch) -> (outputs, targets)`` for batches in any other form.
        options: of ``DRCL.around``, unless the trainer's optimizer already is a DRCL; by default DRCL's defaults.
    """

    def __init__(
        self,
        anchor: Anchor | str | os.PathLike[str] | None = None,
        old: Iterable[Any] | None = None,
        probes: Retention | Mapping[str, Iterable[Any]] | None = None,
        importance: Importance | None = None,
        save: str | os.PathLike[str] | None = None,
        forward: Forward | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.task = Task(anchor, old, probes, importance, save, forward, options)

    @property
    def optimizer(self) -> DRCL:
        """The optimizer; available once training has begun."""
        return self.task.optimizer

    @property
    def retention(self) -> Retention | None:
        """The measures on the probes."""
        return self.task.retention
