"""Two small convolutional networks: one for quick experiments, and UPGD's for CIFAR-10."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from drcl.lab.networks.dropout import Dropout
from drcl.lab.networks.norms import NormPolicy, make_norm


class SmallCNN(nn.Sequential):
    """3x3 convolutions, each followed by 2x2 max-pooling and ReLU, then one wide layer; any image from 8
    pixels."""

    def __init__(
        self,
        shape: tuple[int, int, int],
        channels: Sequence[int] = (32, 64, 64),
        hidden: int = 128,
        dropout: float = 0.0,
        norm: NormPolicy | None = None,
        tasks: int = 1,
    ) -> None:
        inputs, height, width = shape
        halvings = 2 ** len(channels)
        if not channels or min(height, width) < halvings:
            raise ValueError(f"input {height}x{width}: {len(channels)} poolings need {halvings} pixels")
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        for number, wide in enumerate(channels, start=1):
            layers[f"conv{number}"] = nn.Conv2d(inputs, wide, 3, padding=1)
            if norm is not None:
                layers[f"conv_norm{number}"] = make_norm(norm, wide, tasks)
            layers[f"pool{number}"] = nn.MaxPool2d(2)
            layers[f"conv_relu{number}"] = nn.ReLU()
            inputs, height, width = wide, height // 2, width // 2
        layers["flatten"] = nn.Flatten()
        layers["fc1"] = nn.Linear(inputs * height * width, hidden)
        if norm is not None:
            layers["fc_norm1"] = make_norm(norm, hidden, tasks)
        layers["fc_relu1"] = nn.ReLU()
        if dropout:
            layers["fc_drop1"] = Dropout(dropout)
        super().__init__(layers)
        self.out_features = hidden


class UPGDNet(nn.Sequential):
    """conv 6 (5x5), pool, conv 16 (5x5), pool, then 120 and 84 wide, with ReLU after the wide layers only."""

    def __init__(self, shape: tuple[int, int, int], tasks: int = 1) -> None:
        channels, height, width = shape
        if min(height, width) < 16:
            raise ValueError(f"input {height}x{width}: two 5x5 convolutions with pooling need 16 pixels")
        down = [((side - 4) // 2 - 4) // 2 for side in (height, width)]
        super().__init__(
            OrderedDict[str, nn.Module](
                conv1=nn.Conv2d(channels, 6, 5),
                pool1=nn.MaxPool2d(2),
                conv2=nn.Conv2d(6, 16, 5),
                pool2=nn.MaxPool2d(2),
                flatten=nn.Flatten(),
                fc1=nn.Linear(16 * down[0] * down[1], 120),
                relu1=nn.ReLU(),
                fc2=nn.Linear(120, 84),
                relu2=nn.ReLU(),
            )
        )
        self.out_features = 84
