"""Small streams for networks, and a few steps of training on a task."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional as F

from drcl.lab import streams
from drcl.lab.data.base import DataSet, Split
from drcl.lab.networks import Network


def stream(scenario="task", shape=(1, 8, 8), classes=6, per_task=2) -> streams.Stream:
    rng = np.random.default_rng(0)
    labels = np.tile(np.arange(classes), 8)
    part = Split(rng.integers(0, 256, (len(labels), *shape), dtype=np.uint8), labels)
    data = DataSet("toy", part, part, tuple(map(str, range(classes))))
    return streams.class_split(data, seed=0, classes_per_task=per_task, scenario=scenario)


def train_task(network: Network, task: streams.Task, steps: int = 3, scale: float = 1.0) -> None:
    network.train()
    network.begin_task(task)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
    for x, y in list(task.train.batches(8))[:steps]:
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(network(x * scale + 1, task.head), y).backward()
        optimizer.step()
    network.end_task(task)
    network.eval()


def statistics(network: Network) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in network.named_buffers() if "num_batches" not in name}
