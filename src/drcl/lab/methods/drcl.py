"""DRCL, the method of this package, as a method of the laboratory: `drcl.DRCL` with all its options.

    x = y - gamma * grad f(y)                  plasticity
    r = 2x - y                                 reflection (none with forward-backward)
    z = a + soft(r - a, gamma * lam * F)       stability, about the weights a of the tasks before
    y = y + z - x

The trunk is protected. Heads of single tasks stay free; a shared head is protected like the rest. The network holds y
during training and is evaluated at z.

The defaults come from a few single-seed trials on digits with the benchmarks' momentum of 0.9, so tune the strength.
The paper's own iteration is ``splitting=douglas-rachford``. It needs momentum=0 or a small learning rate: with momentum
its fixed point is stable only for steps ten times smaller. ``preset=paper`` takes the paper's settings, unless you give
others. It also sets the learning rate from the second task on to 0.005 (``later_lr``). The paper does not state a rate
for the first task, which keeps the benchmark's.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from drcl import DRCL, MAS, Fisher, Kronecker, PathIntegral, drift
from drcl.importance import Importance, Labels
from drcl.lab.common import seeds
from drcl.lab.common.fields import option
from drcl.lab.methods import _checks, _fisher
from drcl.lab.methods._estimators import FromTheFirst, Reduced
from drcl.lab.methods._fisher import LABELS
from drcl.lab.methods._library import fills_in_presets, takes
from drcl.lab.methods.base import Knob, Method, Setting
from drcl.lab.networks import Network
from drcl.lab.streams import Task
from drcl.options import PRESETS, one_of
from drcl.per_sample.draw import tensors
from drcl.splitting.observation import Observer

# Options of the library that this method passes on, by owner; `backend` comes last in the list.
SOLVER = (
    *("strength", "stable", "prox", "splitting", "iterations", "tolerance", "plasticity_steps", "inner_steps"),
    *("memory", "normalise", "damping"),
)
DIRECTIONS = ("eigenvalues", "convolutions", "rank")


@fills_in_presets  # so that the record of a run has the actual settings
@dataclass
@takes(DRCL, *SOLVER, before="momentum")
@takes(Kronecker, *DIRECTIONS, before="path_damping")
@takes(DRCL, "backend")
class DouglasRachford(Method):
    """The optimizer lives as long as the run: anchor and importance are its state."""

    name: ClassVar[str] = "drcl"
    about: ClassVar[str] = "Douglas-Rachford continual learning: a proximal step about the old weights"
    tunes: ClassVar[Knob | None] = Knob("strength", 1e-5, 1.0)

    keeps_optimizer: ClassVar[bool] = True

    preset: Literal["paper"] | None = option(None, "several settings under one name; options given explicitly win")
    momentum: float | None = option(None, "momentum of the plasticity step; none: the benchmark's")
    importance: Literal["fisher", "kronecker", "mas", "path"] = option(
        "fisher", "how importance is estimated; kronecker protects directions instead of single weights"
    )
    samples: int | None = option(Fisher().samples, "training images per task for the importance; none: all")
    labels: Labels = option(Fisher.usual_labels, LABELS)
    path_damping: float = option(PathIntegral().damping, "damping of the path integral")

    def check(self) -> None:
        if self.preset is not None:
            one_of("preset", self.preset, ("paper",))
        _checks.at_least_one_or_none(self.name, samples=self.samples)
        if self.momentum is not None and not 0 <= self.momentum < 1:
            raise ValueError(f"drcl: momentum={self.momentum}: give 0 <= momentum < 1, or none")
        self._make([torch.nn.Parameter(torch.zeros(1))], lr=0.1, momentum=0.0)  # the library checks the other options
        PathIntegral(self.path_damping)
        Kronecker(**self._directions())

    def training_defaults(self) -> dict[str, Any]:
        return {} if self.preset is None else {"later_lr": PRESETS[self.preset]["lr"]}

    def build(self, model: Network, setting: Setting) -> Network:
        super().build(model, setting)
        if self.preset is not None and setting.optimizer != "sgd":
            raise ValueError(
                f"drcl: preset={self.preset} works only with plain SGD; use optimizer=sgd, not {setting.optimizer}"
            )
        guarded = self.protected()
        groups: list[dict[str, Any]] = [{"params": list(guarded.items())}]
        free = {n: p for n, p in model.named_parameters() if n not in guarded}
        if free:
            # Include all heads: those of other tasks have no gradient, so they do not move.
            groups.append({"params": list(free.items()), "free": True})
        if setting.optimizer == "sgd":
            sgd = {"lr": setting.lr, "momentum": self._momentum(), "weight_decay": setting.weight_decay}
            self._optimizer = self._make(groups, **sgd)
        else:
            self._optimizer = DRCL.around(setting.make_optimizer(groups), **self._solver())
        self._optimizer.progress.observer = Observer()
        self._path = PathIntegral(self.path_damping).watch(self._optimizer) if self.importance == "path" else None
        return model

    def _solver(self) -> dict[str, Any]:
        # The network handles statistics of norm layers, in the same way for every method (drcl.lab.networks.norms).
        return {k: getattr(self, k) for k in (*SOLVER, "backend")} | {"norms": "shared"}

    def _directions(self) -> dict[str, Any]:
        return {k: getattr(self, k) for k in DIRECTIONS}

    def _make(self, params: Any, **sgd: Any) -> DRCL:
        return DRCL(params, **sgd, **self._solver())

    def optimizer(self, task: Task) -> torch.optim.Optimizer:
        """The same optimizer for the whole run, with the learning rate and the momentum of this task."""
        for group in self._optimizer.param_groups:
            group["lr"] = group["initial_lr"] = self.setting.lr
            if self.setting.optimizer == "sgd":
                group["momentum"] = self._momentum()
        return self._optimizer

    def _momentum(self) -> float:
        if self.setting.momentum_given or (self.momentum is None and self._solver()["splitting"] != "implicit"):
            return self.setting.momentum
        return self.momentum or 0.0  # the implicit proposal has no momentum

    def step(self, optimizer: torch.optim.Optimizer, closure: Callable[[], Tensor]) -> Tensor:
        return self._optimizer.step(closure)

    def observer(self) -> Observer | None:
        return self._optimizer.progress.observer if self._optimizer.tasks else None  # the first task filters nothing

    def directions_held(self) -> float:
        anchor = self._optimizer.anchor if self.importance == "kronecker" else None
        if anchor is None:
            return math.nan
        with self.deployed():
            return drift(self.model, anchor).total.directions_unmoved

    @contextlib.contextmanager
    def deployed(self) -> Iterator[None]:
        with self._optimizer.deployed():
            yield

    @torch.no_grad()
    def restored(self) -> None:
        """z was measured and becomes y, as at the end of a task; a proposal that was not negotiated yet is dropped."""
        self._optimizer.eval()
        for p, state in self._optimizer.protected():
            for key in ("start", "gradients"):
                state.pop(key, None)
            if "z" in state:
                state["z"].copy_(p)
        progress = self._optimizer.progress
        progress.mode, progress.steps_in_proposal, progress.gammas = "train", 0, []

    def after_task(self, task: Task) -> None:
        count = _fisher.number_of(self.samples, task)
        if self._path is not None:
            self._optimizer.consolidate(self.model, None, importance=self._path)
            return
        batches = list(self.sample(task, count, "importance"))
        self.gradients += -(-count // self.setting.batch)
        with self.one_by_one(task, batches):
            self._optimizer.consolidate(
                self.model,
                batches,
                importance=self._estimator(count, task),
                forward=lambda model, batch: (model(batch[0], task.head), batch[1]),
            )

    def _estimator(self, count: int, task: Task) -> Importance:
        seed = seeds.derive(self.setting.seed, "importance", task.index)
        if self.importance == "kronecker":
            return FromTheFirst(samples=count, labels=self.labels, seed=seed, **self._directions())
        if self.importance == "mas":
            return Reduced(MAS(samples=count, seed=seed))
        return Reduced(Fisher(samples=count, labels=self.labels, seed=seed))

    def state_dict(self) -> dict[str, Any]:
        path = None if self._path is None else self._path.state_dict()
        return {"optimizer": self._optimizer.state_dict(), "path": path}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._optimizer.load_state_dict(state["optimizer"])
        if self._path is not None:
            self._path.load_state_dict(state["path"])

    def state_bytes(self) -> int:
        """Anchor, importance and z; factors and directions; the way so far where importance is a path integral."""
        kept = [*tensors(self._optimizer.state_dict().get("layers", []))]
        kept += [s[k] for _, s in self._optimizer.protected() for k in ("anchor", "importance", "z") if k in s]
        if self._path is not None:
            path = self._path.state_dict()
            kept += [*path["start"], *path["omega"]]
        return sum(t.numel() * t.element_size() for t in kept)
