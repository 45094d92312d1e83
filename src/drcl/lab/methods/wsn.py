"""WSN: winning subnetworks. Every task picks some of the weights by learned scores; picked weights never move again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from drcl.lab.common import seeds
from drcl.lab.common.fields import option
from drcl.lab.methods import _checks
from drcl.lab.methods.base import Abilities, Batch, Knob, Method, Setting
from drcl.lab.networks import Network
from drcl.lab.streams import Task


@dataclass
class WSN(Method):
    """Kang, Mina, Madjid, Yoon, Hasegawa-Johnson, Hwang, Yoo, "Forget-free Continual Learning with Winning
    Subnetworks", ICML 2022 (PMLR 162:10734).

    Every weight w of the trunk's linear and convolutional layers has a score s. A task uses w * m, where m is 1 for
    the share `density` of each layer's weights with the largest |s| and 0 elsewhere. The gradient passes through m as
    if it were |s|: d loss / d |s| = w * (gradient of w * m). Weights in the union of the earlier tasks' masks get no
    gradient. Scores always do, and they carry over from task to task. At the end of a task its mask is computed from
    the scores and kept, one bit per weight; the task is always answered with it.

    The paper's networks have no biases and no trained norm layers; here those are trained in the first task and then
    kept. So old logits stay the same bit for bit. A fresh optimizer moves nothing that has a zero gradient. Weight
    decay would, so it is refused. If scores are equal, only as many weights are taken as the density allows.
    """

    name: ClassVar[str] = "wsn"
    about: ClassVar[str] = "winning subnetworks: a binary mask on weights for every task (ICML 2022)"
    abilities: ClassVar[Abilities] = Abilities(task_ids=True, norms="unshared", weight_decay=False)
    tunes: ClassVar[Knob | None] = Knob("density", 0.01, 1.0)

    density: float = option(0.5, "share of each layer's weights that a task uses, in (0, 1]")
    adam_lr: float | None = option(1e-3, "learning rate of Adam, as in the paper; none: the run's own optimizer")

    def check(self) -> None:
        if not 0 < self.density <= 1:
            raise ValueError(f"wsn: density={self.density} must lie in (0, 1]: the paper has 0.03 to 0.5")
        _checks.adam_lr(self.name, self.adam_lr)

    def build(self, model: Network, setting: Setting) -> Network:
        super().build(model, setting)
        trunk = model.groups()["trunk"]
        modules = [(name, m) for name, m in model.named_modules() if isinstance(m, nn.Linear | nn.Conv2d)]
        self.masked = {f"{name}.weight": m.weight for name, m in modules if f"{name}.weight" in trunk}
        generator = torch.Generator().manual_seed(seeds.derive(setting.seed, "wsn", "scores"))
        scores = nn.ParameterDict()
        for name, weight in self.masked.items():
            bound = weight[0].numel() ** -0.5
            drawn = torch.rand(weight.shape, generator=generator) * 2 - 1
            scores[_key(name)] = nn.Parameter((drawn * bound).to(weight))
        # Kept outside the trunk: scores are not weights and must not count when weights are compared.
        model.add_module("scores", scores)
        return model

    def parameters(self, task: Task) -> dict[str, nn.Parameter]:
        trained = super().parameters(task)
        if self.state:
            loose = self.model.groups()["trunk"].keys() - self.masked.keys()
            trained = {name: p for name, p in trained.items() if name not in loose}
        return trained | {f"scores.{_key(name)}": self.score(name) for name in self.masked}

    def optimizer(self, task: Task) -> torch.optim.Optimizer:
        if self.adam_lr is None:
            return super().optimizer(task)
        return torch.optim.Adam(self.parameters(task).items(), lr=self.adam_lr)

    def loss(self, batch: Batch) -> Tensor:
        assert isinstance(batch.head, int)
        logits = self.forward(batch.x, batch.head, self.current())
        self.logits = logits.detach()
        return F.cross_entropy(logits, batch.y)

    def after_backward(self) -> None:
        for name, used in self.used().items():
            grad = self.masked[name].grad
            if grad is not None:
                grad.masked_fill_(used, 0.0)

    @torch.no_grad()
    def after_task(self, task: Task) -> None:
        found = {name: pack(mask.bool()) for name, mask in self.current().items()}
        self.state.setdefault("masks", {})[str(task.index)] = found

    def predict(self, x: Tensor, task: Task) -> Tensor:
        return self.forward(x, task.head, self.mask_of(task.index))

    def forward(self, x: Tensor, head: int, masks: dict[str, Tensor]) -> Tensor:
        """Logits of the subnetwork that `masks` select."""
        weights = {name: weight * masks[name] for name, weight in self.masked.items()}
        return functional_call(self.model, weights, (x, head))

    # ---- masks

    def score(self, name: str) -> nn.Parameter:
        scores = self.model.scores
        assert isinstance(scores, nn.ParameterDict)
        return scores[_key(name)]

    def current(self) -> dict[str, Tensor]:
        """The masks that the current scores give."""
        return {name: top_share(self.score(name).abs(), self.density) for name in self.masked}

    def mask_of(self, task: int) -> dict[str, Tensor]:
        """The final masks of a task; before it ends, the current ones."""
        kept = self.state.get("masks", {}).get(str(task))
        if kept is None:
            return self.current()
        return {name: unpack(kept[name], weight).to(weight) for name, weight in self.masked.items()}

    def used(self) -> dict[str, Tensor]:
        """Which weights some finished task uses. Derived from the masks, and updated with every finished task."""
        kept = self.state.get("masks", {})
        if getattr(self, "_union_of", None) != len(kept):
            self._union: dict[str, Tensor] = {}
            for name, weight in self.masked.items() if kept else ():
                bits = torch.stack([each[name] for each in kept.values()])
                self._union[name] = unpack(bits[0] if len(bits) == 1 else _either(bits), weight)
            self._union_of = len(kept)
        return self._union

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._union_of = -1

    def state_bytes(self) -> int:
        """The scores belong to the method, although the network contains them."""
        return super().state_bytes() + sum(self.score(name).nbytes for name in self.masked)


class _TopShare(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, count: int) -> Tensor:
        mask = torch.zeros_like(scores).flatten()
        mask[_largest(scores.flatten(), count)] = 1.0
        return mask.view_as(scores)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


def _largest(values: Tensor, count: int) -> Tensor:
    """Positions of the largest values, in any order: on a CPU numpy is ten times faster than a sorted top-k."""
    if values.device.type != "cpu":
        return values.topk(count, sorted=False).indices
    rest = len(values) - count
    return torch.from_numpy(np.argpartition(values.numpy(), rest)[rest:] if rest else np.arange(count))


def top_share(scores: Tensor, density: float) -> Tensor:
    """1 where the largest scores are, as many as make the density, 0 elsewhere; its gradient is passed straight on."""
    return _TopShare.apply(scores, max(1, round(density * scores.numel())))


def pack(mask: Tensor) -> Tensor:
    """A mask in one bit per entry."""
    return torch.from_numpy(np.packbits(mask.cpu().numpy().reshape(-1)))


def unpack(bits: Tensor, like: Tensor) -> Tensor:
    """The mask again, in the shape and on the device of `like`."""
    flat = np.unpackbits(bits.cpu().numpy(), count=like.numel())
    return torch.from_numpy(flat).bool().view(like.shape).to(like.device)


def _either(bits: Tensor) -> Tensor:
    return torch.from_numpy(np.bitwise_or.reduce(bits.cpu().numpy(), axis=0))


def _key(name: str) -> str:
    return name.replace(".", "/")  # a parameter's own name may not contain a dot
