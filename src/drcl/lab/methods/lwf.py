"""Learning without forgetting (Li and Hoiem, ECCV 2016): on the data of a new task, keep the answers of the old ones.

    teacher   the network as the last task left it; its answers on the current batch are the soft targets
    p, q      softmax(logits / T) of the teacher and of the network, for an old head
    K         - mean over the batch of sum_c p_c log q_c

With L the cross-entropy of the current task, t tasks up to and including it, and K of each of the old heads:

    li-hoiem          L + lam * sum over heads of K
    van-de-ven-2022   L + lam * T^2 * (t - 1) * mean over heads of K
    van-de-ven-2019   (L + lam * T^2 * (t - 1) * mean over heads of K) / (1 + lam * (t - 1))

The second is by van de Ven, Tuytelaars and Tolias (Nature Machine Intelligence 2022), who leave out t - 1 in
class-incremental streams. The third is by van de Ven and Tolias ("Three scenarios for continual learning", 2019):
with lam = 1 the current task counts 1 / t and the old ones 1 - 1 / t.

In task-incremental streams every earlier task has its own head, and all of them continue to learn. In domain- and
class-incremental streams the single head is its own teacher. Classes that the teacher has not seen have p = 0, and q is
taken over all classes seen so far.

Li and Hoiem train the new head alone before they train everything. Here, as with van de Ven, everything is trained from
the first step. The teacher answers in evaluation mode. Where norm layers keep statistics for each task, old heads
answer with the statistics of their own task, which do not change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from drcl.lab.common.fields import option
from drcl.lab.methods import _checks, _memory
from drcl.lab.methods.base import Batch, Knob, Method
from drcl.lab.networks.norms import PerTaskBatchNorm, judging
from drcl.lab.streams import Task


@dataclass
class LwF(Method):
    """Keeps one copy of the network and no data. Costs one more forward pass per step than plain training, and with
    statistics for each task two more for each old head."""

    name: ClassVar[str] = "lwf"
    about: ClassVar[str] = "learning without forgetting: the old network's answers on new data are soft targets"
    tunes: ClassVar[Knob | None] = Knob("lam", 0.01, 100.0)

    lam: float = option(1.0, "weight of the old answers; 0 gives plain fine-tuning")
    temperature: float = option(
        2.0, "the logits are divided by it before the softmax; values above 1 soften the answers"
    )
    form: Literal["li-hoiem", "van-de-ven-2022", "van-de-ven-2019"] = option(
        "li-hoiem", "how the losses of old and new tasks are added up"
    )

    def check(self) -> None:
        _checks.not_negative(self.name, lam=self.lam)
        if self.lam or self.temperature:  # without distillation there is nothing to divide
            _checks.positive(self.name, temperature=self.temperature)

    @property
    def heads(self) -> list[int]:
        """The heads the teacher answers with, in the order of their tasks."""
        return self.state.get("heads", [])

    def parameters(self, task: Task) -> dict[str, nn.Parameter]:
        return _memory.trunk_and_heads(self.model, list(dict.fromkeys([*self.heads, task.head])))

    def loss(self, batch: Batch) -> Tensor:
        if not self.heads or self.lam == 0:
            return self.cross_entropy(batch)
        assert isinstance(batch.head, int)
        features = self.model.features(batch.x, batch.head)
        logits = self.model.heads(features, batch.head)
        self.logits = logits.detach()
        new = F.cross_entropy(logits, batch.y)
        pairs = zip(self.told(batch.x), self.answers(batch.x, features), strict=True)
        old = torch.stack([self.divergence(*pair) for pair in pairs])
        if self.form == "li-hoiem":
            return new + self.lam * old.sum()
        before = self.state["tasks"]
        times = 1 if self.form == "van-de-ven-2022" and self.setting.scenario == "class" else before
        total = new + self.lam * self.temperature**2 * times * old.mean()
        return total / (1 + self.lam * before) if self.form == "van-de-ven-2019" else total

    def divergence(self, told: Tensor, logits: Tensor) -> Tensor:
        """K: the cross-entropy of softened answers against the teacher's softened answers."""
        known: Tensor | slice = self.model.heads.seen if self.model.heads.kind == "growing" else slice(None)
        soft = (told[:, known] / self.temperature).softmax(1)
        return -(soft * (logits[:, known] / self.temperature).log_softmax(1)).sum(1).mean()

    @torch.no_grad()
    def told(self, x: Tensor) -> list[Tensor]:
        """The teacher's logits, for each old head."""
        model, teacher = self.model, self.state["teacher"]
        with judging(model):
            if model.keeps_tasks_apart:
                return [functional_call(model, teacher, (x, head)) for head in self.heads]
            features = functional_call(model.trunk, _part(teacher, "trunk."), (x,))
            return [functional_call(model.heads, _part(teacher, "heads."), (features, head)) for head in self.heads]

    def answers(self, x: Tensor, features: Tensor) -> list[Tensor]:
        """The network's logits, for each old head; `features` are what its trunk makes of `x`."""
        if not self.model.keeps_tasks_apart:
            return [self.model.heads(features, head) for head in self.heads]
        with judging(self.model.trunk, PerTaskBatchNorm):
            return [self.model(x, head) for head in self.heads]

    def after_task(self, task: Task) -> None:
        self.state["heads"] = list(dict.fromkeys([*self.heads, task.head]))
        self.state["tasks"] = self.state.get("tasks", 0) + 1
        later = {name for head in range(len(self.model.heads)) for name in self.model.head_parameters(head)}
        later -= self.parameters(task).keys()
        whole = self.model.state_dict()
        self.state["teacher"] = {name: t.detach().clone() for name, t in whole.items() if name not in later}


def _part(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): t for name, t in state.items() if name.startswith(prefix)}
