"""A layer with an adapter of low rank, as peft makes them, and small networks of such layers."""

import torch
from tests.tasks import mlp
from torch import nn


class Adapted(nn.Module):
    def __init__(self, base, rank=2, scale=1.5, key="default"):
        super().__init__()
        self.base_layer = base.requires_grad_(False)
        self.lora_A = nn.ModuleDict({key: nn.Linear(base.in_features, rank, bias=False)})
        self.lora_B = nn.ModuleDict({key: nn.Linear(rank, base.out_features, bias=False)})
        nn.init.zeros_(self.lora_B[key].weight)
        self.scaling, self.active_adapters, self.merged_adapters = {key: scale}, [key], []

    def forward(self, x):
        out = self.base_layer(x)
        for key in self.active_adapters:
            if key not in self.merged_adapters:
                out = out + self.scaling[key] * self.lora_B[key](self.lora_A[key](x))
        return out

    @torch.no_grad()
    def merge(self):
        for key in self.active_adapters:
            self.base_layer.weight += self.scaling[key] * self.lora_B[key].weight @ self.lora_A[key].weight
            self.merged_adapters.append(key)
        return self.base_layer


def adapted(seed=0, layers=(0, 2), **options):
    """A network whose linear layers have adapters, and nothing else to train."""
    model = mlp().requires_grad_(False)
    torch.manual_seed(100 + seed)
    for i in layers:
        model[i] = Adapted(model[i], **options)
    return model


def merged(model):
    """The adapters as part of the weights, and fresh ones on top."""
    for i, layer in enumerate(model):
        if isinstance(layer, Adapted):
            model[i] = Adapted(layer.merge(), layer.lora_A["default"].out_features, layer.scaling["default"])
    return model


def products(model):
    """What the adapters add to the weights."""
    return [
        m.scaling["default"] * (m.lora_B["default"].weight @ m.lora_A["default"].weight).detach()
        for m in model
        if isinstance(m, Adapted)
    ]


def effective(model):
    """The weights that act."""
    return [
        m.base_layer.weight.detach() + p for m, p in zip((m for m in model if isinstance(m, Adapted)), products(model))
    ]
