"""How much faster the laboratory's convolutional networks train on a CPU than the same layers as torch has them.

    python -m benchmarks.speed.networks [--nets N ...] [--rounds R] [--threads T] [--record]

The laboratory draws dropout masks with cheap random numbers, keeps images channels last, and keeps freed memory in the
process. The two sides are two processes that take turns: forward pass, backward pass and no optimizer, batch 64.
"""

from __future__ import annotations

import argparse
import copy
import statistics
from multiprocessing import get_context
from multiprocessing.connection import Connection

import torch
from benchmarks.speed import ratios
from benchmarks.speed.loading import timed
from torch import Tensor, nn
from torch.nn import functional as F

from drcl.lab.common import memory
from drcl.lab.networks import TRUNKS
from drcl.lab.networks.dropout import Dropout
from drcl.lab.networks.network import channels_last

BATCH = 64
SPAWN = get_context("spawn")
NETS: dict[str, tuple[str, tuple[int, int, int], dict[str, float]]] = {
    "alexnet": ("alexnet", (3, 32, 32), {}),
    "alexnet half": ("alexnet", (3, 32, 32), {"width": 0.5}),
    "resnet": ("resnet18-reduced", (3, 32, 32), {}),
    "resnet grey": ("resnet18-reduced", (1, 32, 32), {}),
    "cnn": ("cnn", (3, 32, 32), {}),
    "cnn grey": ("cnn", (1, 28, 28), {}),
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


def serve(name: str, laboratory: bool, threads: int, line: Connection) -> None:
    """One side, in a process of its own, since how freed memory is treated is a setting of the process: for each
    number that comes in, the seconds of so many iterations."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    kind, shape, options = NETS[name]
    trunk = TRUNKS[kind](shape, tasks=1, **options)
    network: nn.Module = nn.Sequential(trunk, nn.Linear(int(trunk.out_features), 10))
    x, y = torch.randn(BATCH, *shape), torch.randint(10, (BATCH,))
    if laboratory:
        memory.keep()
        x = channels_last(x)
    else:
        network = plain(network)
    while times := line.recv():
        line.send(timed(lambda: iteration(network, x, y), times))


def compare(name: str, rounds: int, threads: int) -> float:
    sides = []
    for laboratory in (True, False):
        line, theirs = SPAWN.Pipe()
        SPAWN.Process(target=serve, args=(name, laboratory, threads, theirs), daemon=True).start()
        sides.append(line)

    def seconds(line: Connection, times: int) -> float:
        line.send(times)
        return float(line.recv())

    for line in sides:
        seconds(line, 3)
    found = [[seconds(line, 3) for line in sides] for _ in range(rounds)]
    for line in sides:
        line.send(0)
    ratio = statistics.median(b / a for a, b in found)
    rates = [BATCH / statistics.median(times) for times in zip(*found)]
    print(f"{name:14} {rates[0]:8,.0f} {rates[1]:8,.0f} images a second {ratio:6.2f}x", flush=True)
    return ratio


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--nets", nargs="+", choices=NETS, default=list(NETS))
    parser.add_argument("--record", action="store_true", help="keep the ratios in results/speed")
    given = parser.parse_args()
    found = {name: compare(name, given.rounds, given.threads) for name in given.nets}
    if given.record:
        ratios.keep("networks", {1: "one", 2: "two"}.get(given.threads, str(given.threads)), found)


if __name__ == "__main__":
    main()
