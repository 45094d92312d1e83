"""What protecting directions costs: whole training iterations as ratios to SGD's, and consolidation.

    python benchmarks/kronecker.py [--rounds R] [--nets mlp alexnet] [--skip-consolidation] [--skip-iterations]

Part 1: iterations (forward, backward, step) taken in turn in one process. A variant that negotiates every n steps runs
n iterations a turn, so that its rotation is counted once in n. Targets: HAT AlexNet, batch 64, at most 1.25 times SGD;
MLP 1000-1000, batch 128, at most 1.40. Part 2: consolidation on the AlexNet as a share of a ten-epoch task of 5,000
images trained by SGD (target 10 per cent), and memory. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import drcl
from drcl.lab.networks import MLP, AlexNet

Maker = Callable[[nn.Module], torch.optim.Optimizer]

NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int, float]] = {
    "mlp": (lambda: nn.Sequential(MLP((1, 28, 28), (1000, 1000)), nn.Linear(1000, 10)), (1, 28, 28), 128, 1.40),
    "alexnet": (lambda: nn.Sequential(AlexNet((3, 32, 32)), nn.Linear(2048, 10)), (3, 32, 32), 64, 1.25),
}
VARIANTS: dict[str, tuple[int, dict[str, Any]]] = {
    "as it comes: rank 256, every 10 steps": (10, {}),
    "every direction, every step": (1, {"rank": None}),
    "rank 128, every step": (1, {"rank": 128}),
    "every direction, every 10 steps": (10, {"rank": None}),
    "rank 512, every 10 steps": (10, {"rank": 512}),
    "rank 128, every 10 steps": (10, {"rank": 128}),
    "rank 128, every 5 steps": (5, {"rank": 128}),
    "every direction, every 25 steps": (25, {"rank": None}),
    "every direction, every 32 steps": (32, {"rank": None}),
    "every direction, every 50 steps": (50, {"rank": None}),
}


class Ready:
    """A model of its own with an optimizer that has a task behind it."""

    def __init__(self, net: str, steps: int, options: dict[str, Any] | None) -> None:
        build, shape, batch, _ = NETS[net]
        torch.manual_seed(0)
        self.model, self.turns = build(), steps
        self.x, self.y = torch.randn(batch, *shape), torch.randint(0, 10, (batch,))
        if options is None:
            self.optimizer: Any = torch.optim.SGD(self.model.parameters(), lr=1e-4, momentum=0.9, foreach=True)
            return
        own = dict(lr=1e-4, momentum=0.9, strength=1.0, prox="l2", splitting="forward-backward")
        self.optimizer = drcl.DRCL(self.model.named_parameters(), plasticity_steps=steps, **own)  # type: ignore[arg-type]
        importance = drcl.Kronecker(eigenvalues="product", samples=batch, **options)
        self.optimizer.consolidate(self.model, [(self.x, self.y)], importance=importance)

    def iterate(self) -> float:
        """Seconds of one iteration."""
        start = time.perf_counter()
        for _ in range(self.turns):
            self.optimizer.zero_grad()
            F.cross_entropy(self.model(self.x), self.y).backward()
            self.optimizer.step()
        return (time.perf_counter() - start) / self.turns


def iterations(net: str, rounds: int) -> None:
    target = NETS[net][3]
    print(f"\nWhole iteration, {net}, batch {NETS[net][2]}, momentum 0.9 (target {target:.2f})")
    for name, (steps, options) in VARIANTS.items():
        plain, ours = Ready(net, max(1, min(steps, 5)), None), Ready(net, steps, options)
        plain.iterate(), ours.iterate()
        times: list[tuple[float, float]] = []
        for _ in range(max(2, rounds // steps)):
            times.append((plain.iterate(), ours.iterate()))
        sgd, own = (statistics.median(column) for column in zip(*times))
        verdict = "met" if own / sgd <= target else "missed"
        print(
            f"  {name:38} {own * 1e3:8.1f} ms against {sgd * 1e3:7.1f}: {own / sgd:6.2f} x SGD   {verdict}", flush=True
        )


def consolidation() -> None:
    build, shape, batch, _ = NETS["alexnet"]
    plain = Ready("alexnet", 1, None)
    plain.iterate()
    epoch = statistics.median(plain.iterate() for _ in range(7)) * 5000 / batch
    print(f"\nConsolidation, alexnet, 1,000 samples, against ten epochs of 5,000 images ({10 * epoch:.0f} s)")
    data = [(torch.randn(batch, *shape), torch.randint(0, 10, (batch,))) for _ in range(16)]
    for name, importance in {
        "Fisher": drcl.Fisher(),
        "Kronecker": drcl.Kronecker(),
        "Kronecker, all directions": drcl.Kronecker(rank=None),
        "Kronecker, product": drcl.Kronecker(eigenvalues="product"),
        "Kronecker, channels": drcl.Kronecker(convolutions="channels"),
    }.items():
        torch.manual_seed(0)
        model = build()
        opt = drcl.DRCL(model.named_parameters(), lr=1e-4, splitting="douglas-rachford")
        start = time.perf_counter()
        opt.consolidate(model, data, importance=importance)
        spent = time.perf_counter() - start
        weights = sum(p.numel() for p in model.parameters())
        kept = sum(t.numel() for s in opt.state.values() for t in s.values() if torch.is_tensor(t))
        kept += sum(layer.basis.floats for layer in opt.progress.layers.values())
        share = spent / (10 * epoch)
        print(f"  {name:26} {spent:6.1f} s, {share:6.1%} of the task; {kept / weights:.1f} floats a weight", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60, help="iterations of each variant, roughly")
    parser.add_argument("--nets", nargs="+", choices=NETS, default=list(NETS))
    parser.add_argument("--skip-consolidation", action="store_true")
    parser.add_argument("--skip-iterations", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    for net in () if arguments.skip_iterations else arguments.nets:
        iterations(net, arguments.rounds)
    if not arguments.skip_consolidation:
        consolidation()


if __name__ == "__main__":
    main()
