"""ResNet-18 for small and for larger images, and the reduced form with 20 filters."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from drcl.lab.networks.norms import NormPolicy, make_norm


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut, which is a 1x1 convolution where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: NormPolicy, tasks: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = make_norm(norm, outputs, tasks)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = make_norm(norm, outputs, tasks)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            projection = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut = nn.Sequential(projection, make_norm(norm, outputs, tasks))

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.norm1(self.conv1(x)))
        out = self.norm2(self.conv2(out))
        return F.relu(out + self.shortcut(x))


class ResNet18(nn.Module):
    """Four stages of two blocks, widths ``f, 2f, 4f, 8f``, then average pooling.

    `stem` is "small" (3x3 convolution, stride 1, no pooling), "standard" (7x7, stride 2, max-pool), or
    None: small below 64 pixels, standard from there on. `pool` is the side of the grid left by the
    average pooling: 1, or 2 for the features GPM feeds its heads with.
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        filters: int = 64,
        stem: str | None = None,
        pool: int = 1,
        norm: NormPolicy = "per-task",
        tasks: int = 1,
    ) -> None:
        super().__init__()
        channels, height, width = shape
        if stem is None:
            stem = "small" if min(height, width) < 64 else "standard"
        if stem not in ("small", "standard"):
            raise ValueError(f'stem={stem!r}: choose "small" or "standard", or None to follow the image size')
        if filters < 1 or pool < 1:
            raise ValueError(f"filters={filters}, pool={pool}: both must be at least 1")
        if norm is None:
            raise ValueError("norm=None: a ResNet needs norm layers; choose one of the named policies")
        self.stem = stem
        small = stem == "small"
        self.conv1 = nn.Conv2d(
            channels, filters, 3 if small else 7, 1 if small else 2, padding=1 if small else 3, bias=False
        )
        self.norm1 = make_norm(norm, filters, tasks)
        self.pool1: nn.Module = nn.Identity() if small else nn.MaxPool2d(3, 2, padding=1)
        stages: list[nn.Module] = []
        inputs = filters
        for stage in range(4):
            outputs = filters * 2**stage
            first = Block(inputs, outputs, 1 if stage == 0 else 2, norm, tasks)
            stages.append(nn.Sequential(first, Block(outputs, outputs, 1, norm, tasks)))
            inputs = outputs
        self.stages = nn.Sequential(*stages)
        self.average = nn.AdaptiveAvgPool2d(pool)
        self.out_features = inputs * pool * pool

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool1(F.relu(self.norm1(self.conv1(x))))
        return self.average(self.stages(x)).flatten(1)


class ReducedResNet18(ResNet18):
    """ResNet-18 with 20 filters, as GPM, A-GEM and POCL use it."""

    def __init__(
        self,
        shape: tuple[int, int, int],
        filters: int = 20,
        stem: str | None = "small",
        pool: int = 1,
        norm: NormPolicy = "per-task",
        tasks: int = 1,
    ) -> None:
        super().__init__(shape, filters, stem, pool, norm, tasks)
