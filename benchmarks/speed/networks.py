"""How much faster the laboratory's convolutional networks train on a CPU than the same layers as torch has them.

    python -m benchmarks.speed.networks [--rounds R] [--threads T] [--record]

The laboratory draws dropout masks with cheap random numbers and keeps images channels last. Both sides take turns
within one run: forward pass, backward pass and no optimizer, batch 64.
"""

from __future__ import annotations

import argparse
import copy
import statistics

import torch
from benchmarks.speed import ratios
from benchmarks.speed.loading import timed
from torch import Tensor, nn
from torch.nn import functional as F

from drcl.lab.networks import TRUNKS
from drcl.lab.networks.dropout import Dropout

BATCH = 64
NETS: dict[str, tuple[str, tuple[int, int, int], dict[str, float]]] = {
    "alexnet": ("alexnet", (3, 32, 32), {}),
    "alexnet half": ("alexnet", (3, 32, 32), {"width": 0.5}),
    "resnet": ("resnet18-reduced", (3, 32, 32), {}),
    "cnn": ("cnn", (3, 32, 32), {}),
}


def plain(network: nn.Module) -> nn.Module:
    """A copy with torch's own dropout."""
    network = copy.deepcopy(network)
    for parent in list(network.modules()):
        for name, layer in parent.named_children():
            if type(layer) is Dropout:
                setattr(parent, name, nn.Dropout(layer.p))
    return network


def iteration(network: nn.Module, x: Tensor, y: Tensor) -> None:
    for p in network.parameters():
        p.grad = None
    F.cross_entropy(network(x), y).backward()


def compare(name: str, rounds: int) -> float:
    kind, shape, options = NETS[name]
    trunk = TRUNKS[kind](shape, tasks=1, **options)
    ours = nn.Sequential(trunk, nn.Linear(int(trunk.out_features), 10))
    theirs = plain(ours)
    x, y = torch.randn(BATCH, *shape), torch.randint(10, (BATCH,))
    last = x.contiguous(memory_format=torch.channels_last)
    sides = [lambda: iteration(ours, last, y), lambda: iteration(theirs, x, y)]
    for call in sides:
        call()
    found = [[timed(call, 3) for call in sides] for _ in range(rounds)]
    ratio = statistics.median(b / a for a, b in found)
    rates = [BATCH / statistics.median(times) for times in zip(*found)]
    print(f"{name:14} {rates[0]:8,.0f} {rates[1]:8,.0f} images a second {ratio:6.2f}x")
    return ratio


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--record", action="store_true", help="keep the ratios in results/speed")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    found = {name: compare(name, given.rounds) for name in NETS}
    if given.record:
        ratios.keep("networks", {1: "one", 2: "two"}.get(given.threads, str(given.threads)), found)


if __name__ == "__main__":
    main()
