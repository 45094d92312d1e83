"""The visitor that adds up powers of per-sample gradients, for the diagonal Fisher and MAS.

It connects `drcl.per_sample.hooks`, which shows it every use of a layer, with the rules of `drcl.per_sample.layers`,
which compute the gradients of each kind of layer.
"""

from typing import Any

import torch
from torch import nn

from drcl.per_sample.hooks import OnePass, Visitor
from drcl.per_sample.layers import Moments, add_power, chunk_length

__all__ = ["MomentVisitor"]


class MomentVisitor(Visitor):
    """Adds the sum over samples of |gradient|^power to `totals`; made for one batch, after its forward pass.

    It handles only the names in `totals`; other parameters are handled elsewhere.
    """

    def __init__(self, onepass: OnePass, totals: Moments, power: int) -> None:
        self.rules = onepass.rules
        self.owned = {
            module: {own: name for own, name in held.items() if name in totals}
            for module, held in onepass.owned.items()
        }
        self.totals, self.power = totals, power
        self._shared = onepass.used_more_than_once()
        self._waiting: list[tuple[nn.Module, torch.Tensor, torch.Tensor]] = []

    def __call__(self, module: nn.Module, x: torch.Tensor, d: torch.Tensor) -> None:
        if not self.owned.get(module):
            return
        if module in self._shared:
            # Sum a sample's uses before taking the power.
            self._waiting.append((module, x, d))
            return
        own = {own: self.totals[name] for own, name in self.owned[module].items()}
        self.rules[module].add_moments(module, x, d, own, self.power)

    def end_of_pass(self) -> None:
        users: dict[str, list[tuple[nn.Module, str, torch.Tensor, torch.Tensor]]] = {}
        # The backward pass visits layers in reverse; sum in the order in which they were called.
        for module, x, d in reversed(self._waiting):
            for own, name in self.owned[module].items():
                users.setdefault(name, []).append((module, own, x, d))
        self._waiting = []
        with torch.no_grad():
            for name, uses in users.items():
                self._add_sum(self.totals[name], uses)

    def _add_sum(self, total: torch.Tensor, uses: list[tuple[nn.Module, str, torch.Tensor, torch.Tensor]]) -> None:
        step = chunk_length(total.numel(), total.device)
        for start in range(0, len(uses[0][3]), step):
            part = slice(start, start + step)
            gradient: Any = 0
            for module, own, x, d in uses:
                gradient = gradient + self.rules[module].gradients(module, x[part], d[part], [own])[own]
            add_power(total, gradient, self.power)
