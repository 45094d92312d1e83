"""Dark experience replay, DER++ (Buzzega, Boschini, Porrello, Abati, Calderara, NeurIPS 2020): remember answers, too.

    L = CE(batch) + alpha * MSE(logits of x1, z1) + beta * CE(x2, y2)

x1 with the logits z1 that the network gave for it when it was stored, and x2 with its label y2, are two independent
draws from the memory. CE is the mean over examples, MSE the mean over examples and outputs. Each example is answered by
its own head, and only by the outputs that existed when it was stored: in class-incremental streams, the classes seen by
then. alpha = 0 is experience replay with the weight beta, beta = 0 is DER, both 0 is plain fine-tuning.

After each step the batch is offered to a reservoir together with its logits in that step. Unlike in experience replay,
this happens in every epoch: logits from the first epoch alone would come from an untrained network.

The defaults are the paper's for a memory of 500 examples on split CIFAR-10; on permuted MNIST it has alpha 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from drcl.lab.common import parallel
from drcl.lab.common.fields import option
from drcl.lab.methods import _checks, _memory
from drcl.lab.methods.base import Batch, Knob, Setting
from drcl.lab.methods.er import ER
from drcl.lab.networks import Network


@dataclass
class DERPlusPlus(ER):
    """Costs one pass over the batch and both draws together."""

    name: ClassVar[str] = "der++"
    about: ClassVar[str] = "dark experience replay: old examples with their labels and their logits at that time"
    tunes: ClassVar[Knob | None] = Knob("alpha", 0.01, 10.0)

    alpha: float = option(0.2, "weight of the squared distance to the stored logits")
    beta: float = option(0.5, "weight of the cross-entropy of remembered examples")

    def check(self) -> None:
        super().check()
        _checks.not_negative(self.name, alpha=self.alpha, beta=self.beta)

    def build(self, model: Network, setting: Setting) -> Network:
        super().build(model, setting)
        # NaN marks an output that the example's head did not have.
        z = torch.full((self.memory, max(setting.heads)), torch.nan, device=setting.device)
        self.state["memory"]["z"] = z
        return model

    # ---- a step

    def before_step(self, batch: Batch) -> Batch:
        """The batch, the examples drawn for their logits, those drawn for their labels: in this order, with the weight
        of each in either part of the loss."""
        self._offered, self.logits = batch, batch.x.new_zeros((0, 1))
        memory, count, device = self.state["memory"], self.replay or len(batch), batch.x.device
        none = torch.zeros(0, dtype=torch.int64, device=memory["y"].device)
        by_logits = _memory.draw_rows(memory, count, self.dice("replay")) if self.alpha else none
        by_label = _memory.draw_rows(memory, count, self.dice("labels")) if self.beta else none
        drawn = torch.cat([by_logits, by_label])
        self._replayed = len(drawn)
        if not len(drawn):
            return batch
        n, k, m = len(batch), len(by_logits), len(by_label)

        def weights(*parts: tuple[int, float]) -> Tensor:
            return torch.cat([torch.full((size,), weight / max(size, 1)) for size, weight in parts]).to(device)

        self._label_weight = weights((n, 1.0), (k, 0.0), (m, self.beta))
        self._logit_weight = weights((n, 0.0), (k, self.alpha), (m, 0.0))
        self._z = torch.cat([memory["z"].new_full((n, memory["z"].shape[1]), torch.nan), memory["z"][drawn]]).to(device)
        return batch.with_more(self.to_device(_memory.at_rows(memory, drawn)))

    def loss(self, batch: Batch) -> Tensor:
        if not self._replayed:
            return self.cross_entropy(batch)
        whole = len(self._label_weight)
        mine = parallel.world().share(whole)  # with several processes, each has its part of the batch
        labels, distances, z = self._label_weight[mine], self._logit_weight[mine], self._z[mine]
        current = max(0, min(len(self._offered), mine.stop) - mine.start)
        total = batch.x.new_zeros(())
        for rows, logits in self.model.by_head(batch.x, batch.heads()):
            each = F.cross_entropy(logits, batch.y[rows], reduction="none")
            total = total + (labels[rows] * each).sum()
            total = total + (distances[rows] * squared_distance(logits, z[rows])).sum()
            if int(rows[0]) < current:
                self.logits = logits[rows < current].detach()
        return total * (whole / len(batch))

    def after_step(self) -> None:
        _memory.offer(self.state["memory"], self._offered, self.dice("reservoir"), z=self._stored())
        del self._offered

    def _stored(self) -> Tensor:
        """The logits of the whole batch in this step; NaN where the head has no such output."""
        batch, own, heads = self._offered, self.logits, self.model.heads
        assert own is not None
        assert isinstance(batch.head, int)
        found = self.state["memory"]["z"].new_zeros((len(batch), max(heads.outputs)))
        first = parallel.world().share(len(batch) + self._replayed).start
        found[first : first + len(own), : own.shape[1]] = own.to(found)
        found = parallel.total(found)
        found[:, heads.outputs[batch.head] :] = torch.nan
        if heads.kind == "growing":
            found[:, ~heads.seen] = torch.nan
        return found


def squared_distance(logits: Tensor, z: Tensor) -> Tensor:
    """For each example, the mean squared distance over the outputs that z has; 0 if it has none."""
    z = z[:, : logits.shape[1]]
    there = ~z.isnan()
    gap = torch.where(there, logits.float() - z.nan_to_num(), 0.0)
    return gap.square().sum(1) / there.sum(1).clamp(min=1)
