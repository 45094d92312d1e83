"""R-EWC (Liu et al. 2018): rotate each layer until its Fisher information is nearly diagonal, then do EWC there.

At the end of a task let the inputs of a layer have the second moment E[x x^T] = U S U^T and its output derivatives
E[d d^T] = V T V^T. The next task trains W' in place of W,

    W' = V^T W U,    y = V W' U^T x,

which changes no output, with the penalty of EWC on W':

    L = L_task + lam/2 * sum F'_ij (W'_ij - W'*_ij)^2,    F'_ij = mean over samples of (d log p / d W'_ij)^2.

Afterwards W = V W' U^T again, and the network is the plain one until the next task begins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from drcl.importance import Labels
from drcl.lab.common.fields import option
from drcl.lab.methods import _checks, _kronecker, _quadratic
from drcl.lab.methods._fisher import LABELS
from drcl.lab.methods.base import Batch, Knob, Method
from drcl.lab.streams import Task


@dataclass
class RotatedEWC(Method):
    """Liu, Masana, Herranz, van de Weijer, López, Bagdanov, "Rotate your Networks: Better Weight Consolidation and Less
    Catastrophic Forgetting", ICPR 2018 (arXiv 1802.02950).

    As in the paper a convolution is rotated over its channels, the same rotation at every kernel position, and its bias
    is left out; ``convolutions=patches`` rotates whole patches. A linear layer's bias is the weight of an input that is
    always 1. Over several tasks the moments are summed, and what earlier tasks left is carried over as the diagonal of
    their Fisher information in the new directions. Parameters outside these layers have the penalty of EWC. The default
    lam was chosen on validation data of both digits benchmarks; too large a one diverges, as in EWC.
    """

    name: ClassVar[str] = "r-ewc"
    about: ClassVar[str] = "EWC on layers rotated to a nearly diagonal Fisher information (ICPR 2018)"
    tunes: ClassVar[Knob | None] = Knob("lam")

    lam: float = option(5.0, "strength of the penalty")
    decay: float = option(1.0, "factor on the old Fisher and moments when new ones are added")
    convolutions: Literal["channels", "patches"] = option("channels", "which inputs of a convolution are rotated")
    samples: int | None = option(1000, "training images per task for moments and Fisher; none: all")
    labels: Labels = option("sampled", LABELS)

    def check(self) -> None:
        _checks.not_negative(self.name, lam=self.lam)
        _checks.at_least_one_or_none(self.name, samples=self.samples)
        if not 0 <= self.decay <= 1:
            raise ValueError(f"{self.name}: decay={self.decay}: give a share from 0 to 1")

    # ---- the rotation

    @property
    def information(self) -> _kronecker.Information:
        """U, V and F' of each layer, and F of the other parameters."""
        return _kronecker.Information.unpack(self.state.get("information", {}))

    @property
    def rotated(self) -> bool:
        """Whether the parameters are W' now: from the first step of a task to its last."""
        return self.state.get("rotated", False)

    def before_stage(self, task: Task, stage: int) -> None:
        if self.state and not self.rotated:
            self._turn(forth=True)
            self.state["anchor"] = _quadratic.copies(self.protected())

    def _turn(self, forth: bool) -> None:
        own = self.protected()
        with torch.no_grad():
            for name, basis in self.information.bases.items():
                stack = _kronecker.matrix(own, name, basis.input_factor)
                turned = basis.rotate(stack) if forth else basis.rotate_back(stack)
                _kronecker.write(turned, own, name, basis.input_factor)
        self.state["rotated"] = forth

    def forward(self, x: Tensor, head: int) -> Tensor:
        """Logits, whether the parameters are rotated or not."""
        if not self.rotated:
            return self.model(x, head)
        own = self.protected()
        plain: dict[str, Tensor] = {}
        with torch.autocast(x.device.type, enabled=False):  # in half precision rotated layers would differ
            for name, basis in self.information.bases.items():
                back = basis.rotate_back(_kronecker.matrix(own, name, basis.input_factor))
                plain |= _kronecker.split(back, own, name, basis.input_factor)
        return functional_call(self.model, plain, (x, head))

    # ---- EWC

    def loss(self, batch: Batch) -> Tensor:
        assert isinstance(batch.head, int)
        logits = self.forward(batch.x, batch.head)
        self.logits = logits.detach()
        return F.cross_entropy(logits, batch.y)

    def predict(self, x: Tensor, task: Task) -> Tensor:
        return self.forward(x, task.head)

    def after_backward(self) -> None:
        if self.rotated:
            _quadratic.add_pull(self.protected(), self.state["anchor"], self.fisher(), self.lam)

    def fisher(self) -> dict[str, Tensor]:
        """F' in the shapes of the parameters."""
        known, own = self.information, self.protected()
        found = dict(known.diagonal)
        for name, basis in known.bases.items():
            found |= _kronecker.split(basis.eigenvalues, own, name, basis.input_factor)
        return found

    def after_task(self, task: Task) -> None:
        if self.rotated:
            self._turn(forth=False)
        known = _kronecker.measure(
            self, task, self.samples, self.labels, self.information, self.decay, convolutions=self.convolutions
        )
        anchor = _quadratic.copies(self.protected())
        self.state = {"anchor": anchor, "information": known.pack(), "rotated": False}
