"""Small builders of the networks that importance is tested and timed on."""

import torch
import torch.nn.functional as F
from torch import nn


def mlp(features: int = 784, width: int = 400, classes: int = 10) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(features, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, classes),
    )


def alexnet(width: int = 64, hidden: int = 2048, classes: int = 10) -> nn.Module:
    """The AlexNet of HAT for 32x32 images."""
    return nn.Sequential(
        *(nn.Conv2d(3, width, 4), nn.ReLU(), nn.Dropout(0.2), nn.MaxPool2d(2)),
        *(nn.Conv2d(width, 2 * width, 3), nn.ReLU(), nn.Dropout(0.2), nn.MaxPool2d(2)),
        *(nn.Conv2d(2 * width, 4 * width, 2), nn.ReLU(), nn.Dropout(0.5), nn.MaxPool2d(2)),
        nn.Flatten(),
        *(nn.Linear(16 * width, hidden), nn.ReLU(), nn.Dropout(0.5)),
        *(nn.Linear(hidden, hidden), nn.ReLU(), nn.Dropout(0.5)),
        nn.Linear(hidden, classes),
    )


class Block(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = nn.Sequential()
        if stride != 1 or inside != outside:
            self.shortcut = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)
        return self.relu(out)


class ResNet18(nn.Module):
    """With the 3x3 stem and no first pooling, for 32x32 images; in-place activations as is usual."""

    def __init__(self, width: int = 64, classes: int = 10) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.bn = nn.BatchNorm2d(width)
        blocks: list[nn.Module] = []
        inside = width
        for stage, stride in enumerate((1, 2, 2, 2)):
            for s in (stride, 1):
                blocks.append(Block(inside, width * 2**stage, s))
                inside = width * 2**stage
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inside, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks(F.relu(self.bn(self.conv(x)), inplace=True))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Transformer(nn.Module):
    """A classifier of token sequences, whose positions are a table looked up without a batch."""

    def __init__(
        self,
        vocabulary: int = 23,
        width: int = 16,
        tokens: int = 7,
        classes: int = 5,
        batch_first: bool = True,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width, padding_idx=0)
        self.positions = nn.Embedding(tokens, width)
        layer = nn.TransformerEncoderLayer(width, 2, 2 * width, batch_first=batch_first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)
        self.batch_first = batch_first

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        if self.batch_first:
            return self.head(self.norm(self.encoder(x)).mean(1))
        return self.head(self.norm(self.encoder(x.transpose(0, 1))).mean(0))


def settle_statistics(model: nn.Module) -> nn.Module:
    """Running statistics and affine parameters of normalisation layers away from their neutral start."""
    generator = torch.Generator().manual_seed(5)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.running_mean.copy_(0.1 * torch.randn(module.num_features, generator=generator))
            module.running_var.copy_(0.5 + torch.rand(module.num_features, generator=generator))
        if isinstance(module, nn.modules.batchnorm._BatchNorm | nn.LayerNorm | nn.GroupNorm):
            with torch.no_grad():
                module.weight.uniform_(0.5, 1.5, generator=generator)
                module.bias.uniform_(-0.2, 0.2, generator=generator)
    return model
