"""`Network`: a trunk, which all tasks share and a method protects, and heads, which stay free."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from drcl.lab.common import seeds
from drcl.lab.networks.heads import HeadKind, Heads
from drcl.lab.networks.norms import PerTaskBatchNorm, freeze_statistics, select_task
from drcl.lab.networks.trunks import TRUNKS
from drcl.lab.streams import Stream, Task


class Network(nn.Module):
    """``network(x, head)`` are the logits of that head; without `head`, of the only one there is.

    The head's number also tells "per-task" norm layers whose statistics to use. The learner calls
    `begin_task` and `end_task`, which keep class masks and norm statistics right; without them a growing
    head answers nothing.
    """

    def __init__(self, trunk: nn.Module, heads: Heads) -> None:
        super().__init__()
        self.trunk, self.heads = trunk, heads
        self._per_task = any(isinstance(layer, PerTaskBatchNorm) for layer in trunk.modules())

    def forward(self, x: Tensor, head: int | None = None) -> Tensor:
        return self.heads(self.features(x, head), head)

    def features(self, x: Tensor, head: int | None = None) -> Tensor:
        """What the trunk hands to the heads, ``[B, heads.features]``."""
        if self._per_task:
            select_task(self.trunk, self.heads.index(head))
        return self.trunk(x)

    def begin_task(self, task: Task) -> None:
        """Before training on `task`: its classes become visible in a growing head."""
        self.heads.see(task.labels)

    def end_task(self, task: Task) -> None:
        """After training on `task`: the first one's norm statistics become final where the policy is
        "frozen"."""
        freeze_statistics(self.trunk)

    def groups(self) -> dict[str, dict[str, nn.Parameter]]:
        """Parameters by full name: "trunk" is what a method protects, "heads" what it leaves free."""
        found: dict[str, dict[str, nn.Parameter]] = {"trunk": {}, "heads": {}}
        for name, parameter in self.named_parameters():
            found["trunk" if name.startswith("trunk.") else "heads"][name] = parameter
        return found

    def head_parameters(self, head: int | None = None) -> dict[str, nn.Parameter]:
        """Parameters of one head, by full name."""
        prefix = f"heads.layers.{self.heads.index(head)}."
        return {name: p for name, p in self.named_parameters() if name.startswith(prefix)}


def build(spec: str | Mapping[str, Any], stream: Stream, seed: int = 0) -> Network:
    """A network for `stream`: `spec` is a trunk's name or a table ``{"kind": name, ...}`` with its arguments.

    Heads follow the stream's scenario. The weights are drawn from `seed` alone, trunk and heads apart,
    and the caller's random state stays as it was.
    """
    options = {"kind": spec} if isinstance(spec, str) else dict(spec)
    kind: Any = options.pop("kind", None)
    if kind not in TRUNKS:
        raise ValueError(f"network kind={kind!r}: choose one of {', '.join(TRUNKS)}")
    heads: dict[str, HeadKind] = {"task": "task", "domain": "shared", "class": "growing"}
    try:
        with seeds.seeded_torch(seed, "network", "trunk"):
            trunk = TRUNKS[kind](stream.shape, tasks=len(stream.heads), **options)
    except TypeError as wrong:
        raise TypeError(f"network {kind!r} does not take these options: {wrong}") from None
    told = stream.scenario == "task"
    if not told and any(isinstance(layer, PerTaskBatchNorm) for layer in trunk.modules()):
        raise ValueError(
            f'norm="per-task" needs to know the task, which a {stream.scenario}-incremental stream hides: '
            'choose norm="shared", "frozen", "batch" or "group"'
        )
    with seeds.seeded_torch(seed, "network", "heads"):
        features = trunk.out_features
        assert isinstance(features, int)
        return Network(trunk, Heads(features, stream.heads, heads[stream.scenario]))


def count_parameters(module: nn.Module) -> int:
    """Number of trained weights."""
    return sum(parameter.numel() for parameter in module.parameters())
