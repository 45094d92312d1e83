"""HAT: hard attention to the task. Every task learns which units it uses; these are then protected."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from drcl.lab.common import seeds
from drcl.lab.common.fields import option
from drcl.lab.methods import _checks
from drcl.lab.methods.base import Abilities, Batch, Knob, Method, Setting
from drcl.lab.networks import Network
from drcl.lab.streams import Task

# A gate this close to 1 counts as 1, so that protected weights do not change in any bit.
SATURATED = 1e-6
LARGEST_EMBEDDING = 6.0
LARGEST_EXPONENT = 50.0


class Gate(nn.Module):
    """Multiplies each unit (channel) by sigmoid(scale * embedding), one row of embeddings per task."""

    def __init__(self, units: int, tasks: int, generator: torch.Generator) -> None:
        super().__init__()
        self.rows = nn.ParameterList(torch.randn(units, generator=generator) for _ in range(tasks))
        self.task, self.scale = 0, 1.0  # set before every use

    def value(self, task: int, scale: float) -> Tensor:
        return torch.sigmoid(scale * self.rows[task])

    def forward(self, x: Tensor) -> Tensor:
        gate = self.value(self.task, self.scale)
        return x * gate.view(-1, *[1] * (x.dim() - 2))


@dataclass
class HAT(Method):
    """Serrà, Surís, Miron, Karatzoglou, "Overcoming Catastrophic Forgetting with Hard Attention to the Task", ICML
    2018 (PMLR 80:4548).

    Each unit's output, after pooling and dropout, is multiplied by a gate a = sigmoid(s e_t) with an embedding e_t of
    its own for every task. Within an epoch s rises from 1/s_max to s_max; answers are given at s_max. At the end of a
    task A <- max(A, a). The loss gains, with sums over all units,

        lam * sum a (1 - A) / sum (1 - A),

    the gradient of a weight from unit j to unit i is multiplied by 1 - min(A_i, A_j), of a bias or of a weight of the
    first layer by 1 - A_i, and that of an embedding by (s_max / s) (cosh(s e) + 1) / (cosh(e) + 1), after which
    embeddings are kept within 6 of 0. Gates within 1e-6 of 1 enter A as 1.

    The factors are constant within a task and its optimizer is fresh, so momentum moves no protected weight. Weight
    decay and Adam would, so they are refused. Norm layers and residual additions are not supported, and the task must
    be known.
    """

    name: ClassVar[str] = "hat"
    about: ClassVar[str] = "hard attention to the task: learned gates on units (ICML 2018)"
    abilities: ClassVar[Abilities] = Abilities(
        task_ids=True, norms="none", branches=False, optimizer="sgd", weight_decay=False
    )
    tunes: ClassVar[Knob | None] = Knob("lam", 0.05, 10.0)

    lam: float = option(0.75, "price of using units that no earlier task uses")
    s_max: float = option(400.0, "steepest slope of the gates, used when answering")

    def check(self) -> None:
        _checks.at_least(self.name, "lam", self.lam, 0.0, "the paper tried 0.1 to 4")
        if not 1 < self.s_max < float("inf"):
            raise ValueError(f"hat: s_max={self.s_max} must be above 1, otherwise gates stay half open: try 25 to 800")

    def build(self, model: Network, setting: Setting) -> Network:
        super().build(model, setting)
        trunk = _checks.chain(self.name, model)
        generator = torch.Generator().manual_seed(seeds.derive(setting.seed, "hat", "embeddings"))
        self.layers = insert_gates(trunk, setting.tasks, generator)
        return model

    @property
    def gates(self) -> list[Gate]:
        return [gate for _, gate in self.layers.values()]

    def parameters(self, task: Task) -> dict[str, nn.Parameter]:
        """The trained parameters; of the embeddings only this task's."""
        others = {id(row) for gate in self.gates for t, row in enumerate(gate.rows) if t != task.index}
        return {name: p for name, p in super().parameters(task).items() if id(p) not in others}

    def loss(self, batch: Batch) -> Tensor:
        self._set(self.at.task, self._slope())
        return self.cross_entropy(batch) + self.lam * self.price()

    def price(self) -> Tensor:
        """Share of the free units that this task uses, in [0, 1]."""
        used = torch.cat([gate.value(self.at.task, self._slope()) for gate in self.gates])
        free = 1 - torch.cat(self._held()) if self.state else torch.ones_like(used)
        # If no units are free, the regulariser is zero.
        return (used * free).sum() / free.sum().clamp(min=torch.finfo(free.dtype).tiny)

    @torch.no_grad()
    def after_backward(self) -> None:
        slope = self._slope()
        for gate in self.gates:
            row = gate.rows[self.at.task]
            if row.grad is not None:
                steep = torch.cosh((slope * row).clamp(-LARGEST_EXPONENT, LARGEST_EXPONENT)) + 1
                row.grad.mul_(self.s_max / slope * steep / (torch.cosh(row) + 1))
        if self.state:
            for (layer, _), (weight, bias) in zip(self.layers.values(), self.factors()):
                for p, factor in ((layer.weight, weight), (layer.bias, bias)):
                    if p is not None and p.grad is not None:
                        p.grad.mul_(factor)

    @torch.no_grad()
    def after_step(self) -> None:
        for gate in self.gates:
            gate.rows[self.at.task].clamp_(-LARGEST_EMBEDDING, LARGEST_EMBEDDING)

    @torch.no_grad()
    def after_task(self, task: Task) -> None:
        held = []
        for number, gate in enumerate(self.gates):
            used = gate.value(task.index, self.s_max)
            used = torch.where(used >= 1 - SATURATED, 1.0, used)
            held.append(torch.maximum(self._held()[number], used) if self.state else used)
        self.state["held"] = held

    def predict(self, x: Tensor, task: Task) -> Tensor:
        self._set(task.index, self.s_max)
        return self.model(x, task.head)

    def state_bytes(self) -> int:
        """The embeddings belong to the method, although the network contains them."""
        return super().state_bytes() + sum(row.nbytes for gate in self.gates for row in gate.rows)

    def factors(self) -> list[tuple[Tensor, Tensor]]:
        """The factors on the gradients of each layer's weight and bias."""
        found: list[tuple[Tensor, Tensor]] = []
        before: Tensor | None = None
        for (layer, _), held in zip(self.layers.values(), self._held()):
            shape = [-1] + [1] * (layer.weight.dim() - 1)
            both = held.view(shape)
            if before is not None:
                # After flattening, each channel is a run of neighbouring inputs.
                inputs = before.repeat_interleave(layer.weight.shape[1] // len(before))
                both = torch.minimum(both, inputs.view([1, -1] + [1] * (layer.weight.dim() - 2)))
            found.append((1 - both, 1 - held))
            before = held
        return found

    def _held(self) -> list[Tensor]:
        return self.state["held"]

    def _slope(self) -> float:
        low = 1 / self.s_max
        return low + (self.s_max - low) * self.at.batch / max(self.at.batches, 1)

    def _set(self, task: int, scale: float) -> None:
        for gate in self.gates:
            gate.task, gate.scale = task, scale


def insert_gates(
    trunk: nn.Sequential, tasks: int, generator: torch.Generator
) -> dict[str, tuple[nn.Linear | nn.Conv2d, Gate]]:
    """Put a gate at the end of each layer's block: before it is flattened, or the next layer begins."""
    placed: OrderedDict[str, nn.Module] = OrderedDict()
    layers: dict[str, tuple[nn.Linear | nn.Conv2d, Gate]] = {}
    waiting: tuple[str, nn.Linear | nn.Conv2d] | None = None

    def close() -> None:
        nonlocal waiting
        if waiting is not None:
            name, layer = waiting
            gate = Gate(layer.weight.shape[0], tasks, generator)
            placed[f"{name}_gate"], layers[name], waiting = gate, (layer, gate), None

    for name, part in trunk.named_children():
        if isinstance(part, nn.Linear | nn.Conv2d | nn.Flatten):
            close()
        placed[name] = part
        if isinstance(part, nn.Linear | nn.Conv2d):
            waiting = (name, part)
    close()
    for name in list(placed):
        if hasattr(trunk, name):
            delattr(trunk, name)
    for name, part in placed.items():
        trunk.add_module(name, part)
    return layers
