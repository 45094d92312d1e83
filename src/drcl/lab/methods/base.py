"""`Method`: what the learner calls while it trains on one task after the other.

A method is a dataclass in its own file. Its fields are its hyperparameters. It declares what it needs and supports
(`abilities`), and it implements only the hooks that it needs:

    build           once: may rewrite the network's layers (masks, gates, Gaussian weights)
    data            which tasks' training data this task trains on; none at all skips the task
    before_task     reset what belongs to one task
    before_stage    the same for each of its `stages`, where a task is trained more than once
    stage_share     how many of a task's steps a stage has, as a share
    optimizer       a new one for each stage, over `parameters` of that task
    before_step     sees the whole batch; may append examples to it (replay)
    loss            of a batch; the penalty of a regulariser may be added here or, as a gradient, afterwards
    after_backward  reads or edits gradients in place, as those of the whole batch
    step            one step of the optimizer; most never touch it
    after_step      clamp, accumulate
    observer        reports what a proximal step was offered and what it let through
restored        network and state have been put back to the best epoch, with which the stage ends
    after_task      importance, memory, masks
    deployed        puts the final weights into the network during an evaluation
    predict         logits of a task's head

Everything that must survive a crash belongs into ``self.state``: tensors and plain values, nested as you like. It is
saved with every checkpoint and restored before the first hook is called, so a hook must not keep anything elsewhere.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from drcl.lab.common import seeds
from drcl.lab.methods._checks import Abilities, refuse
from drcl.lab.networks import Network
from drcl.lab.networks.norms import settled
from drcl.lab.streams import Scenario, Stream, Task
from drcl.per_sample.draw import tensors
from drcl.splitting.observation import Observer


class Knob(NamedTuple):
    """The option that balances old against new tasks, and the range in which to search first."""

    name: str
    low: float = 1e-3
    high: float = 1e3


class Batch(NamedTuple):
    """Images, labels and the head that answers: one for all, or one per image."""

    x: Tensor
    y: Tensor
    head: int | Tensor

    def __len__(self) -> int:
        return len(self.y)

    def rows(self, chosen: slice | Tensor) -> Batch:
        """Some of its examples."""
        head = self.head if isinstance(self.head, int) else self.head[chosen]
        return Batch(self.x[chosen], self.y[chosen], head)

    def with_more(self, other: Batch) -> Batch:
        """Both together, this one first."""
        head: int | Tensor
        if isinstance(self.head, int) and isinstance(other.head, int) and self.head == other.head:
            head = self.head
        else:
            head = torch.cat([b.heads() for b in (self, other)])
        return Batch(torch.cat([self.x, other.x]), torch.cat([self.y, other.y]), head)

    def heads(self) -> Tensor:
        """The head of each example."""
        return torch.full_like(self.y, self.head) if isinstance(self.head, int) else self.head


@dataclass
class Where:
    """How far the run has come. If random numbers depend only on this and the seed, a resumed run draws the same."""

    task: int = 0
    stage: int = 0
    step: int = 0  # within the stage
    epoch: int = 0
    batch: int = 0  # within the epoch
    batches: int = 0  # of an epoch
    steps: int = 0  # of the stage


@dataclass(frozen=True)
class Setting:
    """What a method may know about its run."""

    scenario: Scenario
    tasks: int
    heads: tuple[int, ...]
    shape: tuple[int, int, int]
    seed: int
    lr: float
    momentum: float
    batch: int
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    optimizer: str = "sgd"
    weight_decay: float = 0.0
    online: bool = False
    momentum_given: bool = False  # set for this task; it wins over the method's own momentum

    def make_optimizer(self, params: Any, **changes: Any) -> torch.optim.Optimizer:
        """The optimizer of the run's settings, over parameters, named parameters or groups."""
        lr = changes.pop("lr", self.lr)
        if self.optimizer == "sgd":
            given = {"momentum": self.momentum, "weight_decay": self.weight_decay} | changes
            return torch.optim.SGD(params, lr=lr, **given)
        changes.pop("momentum", None)
        kinds = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
        return kinds[self.optimizer](params, lr=lr, **({"weight_decay": self.weight_decay} | changes))


@dataclass
class Method:
    """Base of all methods: fine-tuning. See the head of this file for the hooks."""

    name: ClassVar[str] = ""
    about: ClassVar[str] = ""
    abilities: ClassVar[Abilities] = Abilities()  # what it needs and what it supports
    tunes: ClassVar[Knob | None] = None  # the option that `drcl tune` chooses; None if there is none
    stages: ClassVar[int] = 1
    keeps_optimizer: ClassVar[bool] = False  # one optimizer for the whole run, saved as part of the method's state

    def __post_init__(self) -> None:
        self.state: dict[str, Any] = {}
        self.at = Where()
        self.gradients = 0  # its own backward passes, in addition to the learner's one per step
        self.logits: Tensor | None = None
        self.check()

    def check(self) -> None:
        """Refuse hyperparameters that make no sense: raise ``ValueError`` with the name, the value and the remedy."""

    def training_defaults(self) -> dict[str, Any]:
        """Training settings that these options of the method imply, unless the run gives others."""
        return {}

    def build(self, model: Network, setting: Setting) -> Network:
        """Take the network. Raise ``ValueError`` for a network or scenario that the method does not support."""
        refuse(
            self.name,
            self.abilities,
            model,
            scenario=setting.scenario,
            optimizer=setting.optimizer,
            weight_decay=setting.weight_decay,
        )
        self.model, self.setting = model, setting
        return model

    # ---- a task

    def data(self, task: Task, stream: Stream) -> Sequence[Task]:
        return [task]

    def before_task(self, task: Task) -> None: ...

    def before_stage(self, task: Task, stage: int) -> None: ...

    def stage_share(self, stage: int) -> float:
        return 1.0

    def parameters(self, task: Task) -> dict[str, nn.Parameter]:
        """The parameters that this task trains, by name: the trunk and its own head, never another task's."""
        return self.model.groups()["trunk"] | self.model.head_parameters(task.head)

    def optimizer(self, task: Task) -> torch.optim.Optimizer:
        return self.setting.make_optimizer(self.parameters(task).items())

    def after_task(self, task: Task) -> None: ...

    # ---- a step

    def before_step(self, batch: Batch) -> Batch:
        return batch

    def loss(self, batch: Batch) -> Tensor:
        return self.cross_entropy(batch)

    def after_backward(self) -> None: ...

    def step(self, optimizer: torch.optim.Optimizer, closure: Callable[[], Tensor]) -> Tensor:
        loss = closure()
        optimizer.step()
        return loss

    def after_step(self) -> None: ...

    def restored(self) -> None: ...

    def observer(self) -> Observer | None:
        """The object that sees what a proximal step is offered and lets through. None: every step passes unfiltered."""
        return None

    # ---- judgement

    def directions_held(self) -> float:
        """Share of the protected directions that the task did not move; called before its consolidation.

        NaN for a method that protects no directions.
        """
        return math.nan

    @contextlib.contextmanager
    def deployed(self) -> Iterator[None]:
        yield

    def predict(self, x: Tensor, task: Task) -> Tensor:
        return self.model(x, task.head)

    # ---- what is kept

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state

    def state_bytes(self) -> int:
        """Bytes kept from task to task, in addition to the network and the optimizer's own moments."""
        return sum(t.numel() * t.element_size() for t in tensors(self.state))

    # ---- tools for those who derive

    def cross_entropy(self, batch: Batch) -> Tensor:
        """Mean cross-entropy, each example answered by its own head; its logits stay in ``self.logits``."""
        if isinstance(batch.head, int):
            logits = self.model(batch.x, batch.head)
            self.logits = logits.detach()
            return F.cross_entropy(logits, batch.y)
        self.logits = None
        return mixed_cross_entropy(self.model, batch)

    def protected(self) -> dict[str, nn.Parameter]:
        """The parameters that earlier tasks depend on, by name: the trunk, and the head if all tasks share one."""
        return self.model.groups()["trunk"] if self.setting.scenario == "task" else dict(self.model.named_parameters())

    def sample(self, task: Task, count: int | None, word: str) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches of `count` training examples of a task, drawn without repetition by the run's seed; None: all, in an
        order that is the same for all methods."""
        whole = count is None or count >= len(task.train)
        draw = ("all",) if whole else (self.name, word)
        order = seeds.permutation(len(task.train), self.setting.seed, *draw, task.index)
        examples = task.train.subset(order[:count])
        for x, y in examples.batches(128, shuffle=False, augment=False):
            yield x.to(self.setting.device), y.to(self.setting.device)

    @contextlib.contextmanager
    def one_by_one(self, task: Task, batches: Sequence[tuple[Tensor, Tensor]]) -> Iterator[None]:
        """Inside, each of these examples has its own output and gradient, in evaluation mode. Norm layers that normally
        use the current batch use the statistics of these batches instead."""

        def look() -> int:
            several = [x for x, _ in batches if len(x) > 1]  # a single example has no statistics
            if not several:
                raise ValueError(f"{self.name}: one example is too few for norm layers that use a whole batch")
            with torch.no_grad():
                for x in several:
                    self.model(x, task.head)
            return sum(map(len, several))

        with settled(self.model, look):
            yield

    def generator(self, *path: int | str) -> torch.Generator:
        """Random numbers for this moment of the run: the same after a resume, others at any other step."""
        at = self.at
        seed = seeds.derive(self.setting.seed, self.name, *path, at.task, at.stage, at.step)
        return torch.Generator().manual_seed(seed)


def mixed_cross_entropy(model: Network, batch: Batch) -> Tensor:
    """Mean cross-entropy of examples of several tasks, each answered by its own head."""
    total = batch.x.new_zeros(())
    for rows, logits in model.by_head(batch.x, batch.heads()):
        total = total + F.cross_entropy(logits, batch.y[rows], reduction="sum")
    return total / len(batch)
