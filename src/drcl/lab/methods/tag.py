"""TAG (Malviya, Ravindran, Chandar, CoLLAs 2022): an adaptive step that remembers every task's gradients.

    moments     M_t <- beta1 M_t + (1 - beta1) g;      V_t <- beta2 V_t + (1 - beta2) g^2     (adagrad: V_t + g^2)
    weights     alpha_k = exp(-b cos(M_t, M_k)) for earlier tasks k, alpha_t = exp(-b);  alpha_t = 1 without a past
    step        w <- w - lr n / (sqrt(sum_k alpha_k V_k) + 1e-8),      n = g   (adam: M_t / (1 - beta1^steps))

for each tensor by itself. A task that agrees with earlier ones gets larger steps, one that goes against them smaller
ones, by up to exp(b) in all. At a task's end its moments are kept permanently, the first one as a direction: two
numbers per weight and task. A head of one task has no past and is trained by the plain adaptive rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from drcl.lab.common.fields import option
from drcl.lab.methods import _checks
from drcl.lab.methods.base import Abilities, Knob, Method
from drcl.lab.streams import Task

EPS = 1e-8


@dataclass
class TAG(Method):
    """Gradients are turned into steps before plain descent takes them, so learning rate schedules work as usual. A step
    changes every weight by about the learning rate, whatever the gradient. A rate meant for plain descent is far too
    large, so this method has its own."""

    name: ClassVar[str] = "tag"
    about: ClassVar[str] = "task-based accumulated gradients: RMSProp, Adagrad or Adam with the moments of every task"
    abilities: ClassVar[Abilities] = Abilities(optimizer="own")
    tunes: ClassVar[Knob | None] = Knob("b", 0.5, 20.0)

    form: Literal["rmsprop", "adagrad", "adam"] = option("rmsprop", "the adaptive rule it extends")
    b: float = option(5.0, "how much agreement with earlier tasks counts")
    beta1: float = option(0.9, "decay of the first moment")
    beta2: float | None = option(None, "decay of the second moment; none takes 0.99, and 0.999 for adam")
    adaptive_lr: float | None = option(
        2.5e-4, "learning rate; the paper has 2.5e-4, for adagrad 5e-3, for adam 5e-4; none: the run's own"
    )

    def check(self) -> None:
        _checks.not_negative(self.name, b=self.b)
        _checks.decay(self.name, beta1=self.beta1)
        if self.beta2 is not None:
            _checks.decay(self.name, beta2=self.beta2)
        if self.adaptive_lr is not None:
            _checks.positive(self.name, adaptive_lr=self.adaptive_lr)

    def optimizer(self, task: Task) -> torch.optim.Optimizer:
        rate = self.setting.lr if self.adaptive_lr is None else self.adaptive_lr
        return torch.optim.SGD(list(self.parameters(task).items()), lr=rate)

    def before_task(self, task: Task) -> None:
        own = self.parameters(task)
        self.state["moments"] = {
            "first": {name: torch.zeros_like(p) for name, p in own.items()},
            "second": {name: torch.zeros_like(p) for name, p in own.items()},
        }
        self.state["steps"] = 0

    @torch.no_grad()
    def after_backward(self) -> None:
        moments: dict[str, dict[str, Tensor]] = self.state["moments"]
        self.state["steps"] += 1
        beta2 = self.beta2 if self.beta2 is not None else (0.999 if self.form == "adam" else 0.99)
        for name, p in self.model.named_parameters():
            if p.grad is None:
                continue
            g, m, v = p.grad, moments["first"][name], moments["second"][name]
            m.mul_(self.beta1).add_(g, alpha=1 - self.beta1)
            if self.form == "adagrad":
                v.addcmul_(g, g)
            else:
                v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
            top = m / (1 - self.beta1 ** self.state["steps"]) if self.form == "adam" else g
            p.grad = top / (self.blended(name, m, v).sqrt_().add_(EPS))

    def blended(self, name: str, m: Tensor, v: Tensor) -> Tensor:
        """The second moments of all tasks that trained this tensor, weighted by their agreement with this task."""
        past = [task for task in self.past if name in task["second"]]
        if not past:
            return v.clone()
        out = v * torch.tensor(-self.b, dtype=v.dtype).exp().item()
        norm = m.norm()
        for task in past:
            dot = (m * task["direction"][name]).sum()
            # A tensor without a gradient so far counts as uncorrelated with all others.
            cosine = torch.where(norm > 0, dot / torch.where(norm > 0, norm, 1.0), 0.0)
            out.add_(task["second"][name] * torch.exp(-self.b * cosine))
        return out

    @property
    def past(self) -> list[dict[str, Any]]:
        """For each earlier task, ``{"direction": ..., "second": ...}`` by the name of the parameter."""
        return self.state.get("past", [])

    def after_task(self, task: Task) -> None:
        # No other task trains this task's head, so its moments would never be used.
        kept, moments = self.protected(), self.state.pop("moments")
        direction = {name: unit(moments["first"][name]) for name in kept}
        self.state["past"] = [
            *self.past,
            {"direction": direction, "second": {name: moments["second"][name] for name in kept}},
        ]


def unit(values: Tensor) -> Tensor:
    """Scaled to length one; zeros stay zeros."""
    norm = values.norm()
    return values / norm if norm > 0 else values.clone()
