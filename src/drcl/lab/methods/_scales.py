"""Parameters that are added with the tasks: the scaling matrices of TRGP and CUBER, stored in the network."""

from __future__ import annotations

from typing import Any

from torch import nn


class Scales(nn.ParameterDict):
    """Scaling matrices by name. There are more of them with every task, so a checkpoint may bring new ones."""

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *more: Any) -> None:
        for name, value in state_dict.items():
            key = name.removeprefix(prefix)
            if name.startswith(prefix) and key not in self:
                self[key] = nn.Parameter(value.detach().clone())
        super()._load_from_state_dict(state_dict, prefix, *more)


def key(task: int, layer: str, old: int) -> str:
    """The matrix with which a task scales the weights of an old one in a layer."""
    return f"{task}:{layer.replace('.', '/')}:{old}"  # a parameter's own name may not contain a dot
