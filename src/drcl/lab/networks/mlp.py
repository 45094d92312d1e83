"""The multilayer perceptron: enough for permuted digits, and small enough to inspect completely."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from math import prod

from torch import nn

from drcl.lab.networks.dropout import Dropout
from drcl.lab.networks.norms import NormPolicy, make_norm


class MLP(nn.Sequential):
    """Flatten, then ``fc1, relu1, fc2, relu2, ...``; with `norm`, ``norm1`` stands between fc1 and relu1."""

    def __init__(
        self,
        shape: tuple[int, int, int],
        hidden: Sequence[int] = (256, 256),
        dropout: float = 0.0,
        norm: NormPolicy | None = None,
        tasks: int = 1,
    ) -> None:
        if not hidden or min(hidden) < 1:
            raise ValueError(f"hidden={list(hidden)}: give the width of each hidden layer, e.g. [256, 256]")
        layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
        width = prod(shape)
        for number, wide in enumerate(hidden, start=1):
            layers[f"fc{number}"] = nn.Linear(width, wide)
            if norm is not None:
                layers[f"norm{number}"] = make_norm(norm, wide, tasks)
            layers[f"relu{number}"] = nn.ReLU()
            if dropout:
                layers[f"drop{number}"] = Dropout(dropout)
            width = wide
        super().__init__(layers)
        self.out_features = width
