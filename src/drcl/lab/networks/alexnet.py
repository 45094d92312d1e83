"""The small AlexNet of the HAT paper, three convolutions and two wide layers, for any input from 20
pixels on, and the form GPM gave it: no biases, and batch normalisation before each ReLU."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import Tensor, nn

from drcl.lab.networks import pooling
from drcl.lab.networks.dropout import Dropout
from drcl.lab.networks.norms import NormPolicy, make_norm


class AlexNet(nn.Sequential):
    """``conv1..conv3`` (each: [norm,] dropout, 2x2 max-pool, relu), flatten, ``fc1, fc2`` ([norm,] dropout, relu).

    The HAT paper has the relu first. Dropout and max-pooling give the same after it as before it, bit for bit, and a
    pooled map has a quarter of the numbers.

    Kernels follow the input's side s: s//8, s//10 and 2. `width` multiplies every layer's width. Dropout is
    `conv_dropout` for the three convolutions and `dropout` for the two wide layers.
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        width: float = 1.0,
        conv_dropout: Sequence[float] | float = (0.2, 0.2, 0.5),
        dropout: float = 0.5,
        channels: Sequence[int] = (64, 128, 256),
        hidden: Sequence[int] = (2048, 2048),
        bias: bool = True,
        norm: NormPolicy | None = None,
        tasks: int = 1,
    ) -> None:
        inputs, side, other = shape
        if side != other or side < 20:
            raise ValueError(f"input {side}x{other}: AlexNet wants square images of 20 pixels or more")
        if width <= 0:
            raise ValueError(f"width={width} multiplies the layers' widths: give a positive number")
        if len(channels) != 3:
            raise ValueError(f"channels={list(channels)}: AlexNet has three convolutions")
        rates = [conv_dropout] * 3 if isinstance(conv_dropout, int | float) else list(conv_dropout)
        if len(rates) != 3:
            raise ValueError(f"conv_dropout={rates}: give one rate, or one for each of the three")
        layers: OrderedDict[str, nn.Module] = OrderedDict()

        def finish(number: int, word: str, wide: int, rate: float, pool: bool) -> None:
            if norm is not None:
                layers[f"{word}norm{number}"] = make_norm(norm, wide, tasks)
            layers[f"{word}drop{number}"] = Dropout(rate)
            if pool:
                layers[f"pool{number}"] = nn.MaxPool2d(2)
            layers[f"{word}relu{number}"] = nn.ReLU()

        kernels = (side // 8, side // 10, 2)
        for number, (base, kernel, rate) in enumerate(zip(channels, kernels, rates), start=1):
            wide = _scaled(base, width)
            layers[f"conv{number}"] = nn.Conv2d(inputs, wide, kernel, bias=bias)
            finish(number, "conv_", wide, rate, pool=True)
            inputs, side = wide, (side - kernel + 1) // 2
        layers["flatten"] = nn.Flatten()
        inputs *= side * side
        for number, base in enumerate(hidden, start=1):
            wide = _scaled(base, width)
            layers[f"fc{number}"] = nn.Linear(inputs, wide, bias=bias)
            finish(number, "fc_", wide, dropout, pool=False)
            inputs = wide
        super().__init__(layers)
        self.out_features = inputs

    def forward(self, x: Tensor) -> Tensor:
        return pooling.through(list(self), x)


class AlexNetGPM(AlexNet):
    """AlexNet as GPM, SGP and WSN train it: no biases, batch statistics always."""

    def __init__(
        self,
        shape: tuple[int, int, int],
        width: float = 1.0,
        conv_dropout: Sequence[float] | float = (0.2, 0.2, 0.5),
        dropout: float = 0.5,
        norm: NormPolicy = "batch",
        tasks: int = 1,
    ) -> None:
        super().__init__(shape, width, conv_dropout, dropout, bias=False, norm=norm, tasks=tasks)


def _scaled(width: int, factor: float) -> int:
    return max(1, round(width * factor))
