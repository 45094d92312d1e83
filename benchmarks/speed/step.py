"""What a DRCL step costs, as ratios to plain SGD's, everything interleaved in one run.

    python -m benchmarks.speed.step [--rounds R] [--skip-iterations] [--skip-directions] [--record]

Part 1: the step alone on ResNet-18's parameters, against torch.optim.SGD(foreach=True) without momentum and against
the time to stream the same bytes (read four arrays, write two). Part 2: whole training iterations (forward, backward,
step). Part 3: state. Part 4: whole iterations when directions are protected (`benchmarks/speed/kronecker.py` alone has
consolidation too). Targets: step at most 2.2 times SGD's and 1.5 times the stream; iteration at most 1.05 times, with
directions at most 1.15.
Run it on an idle machine; the medians of interleaved rounds are compared.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable

import torch
from benchmarks.speed import kronecker, ratios
from torch import nn
from torch.nn import functional as F

import drcl
from drcl.lab.networks import AlexNet, ResNet18


def interleaved(actions: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median seconds of each action, taken in turn so that a noisy moment hits all of them."""
    times: dict[str, list[float]] = {name: [] for name in actions}
    for action in actions.values():
        action()
    for _ in range(rounds):
        for name, action in actions.items():
            start = time.perf_counter()
            action()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(t) for name, t in times.items()}


def show(title: str, medians: dict[str, float], base: str, targets: dict[str, float]) -> dict[str, float]:
    """Print the ratios to `base`, and give them back."""
    print(f"\n{title}")
    for name, value in medians.items():
        ratio = value / medians[base]
        target = targets.get(name)
        verdict = "" if target is None else f"   target {target:.2f}: {'met' if ratio <= target else 'MISSED'}"
        print(f"  {name:42} {value * 1e3:9.2f} ms   {ratio:6.2f} x {base}{verdict}")
    return {name: value / medians[base] for name, value in medians.items()}


class Ready:
    """A model of its own with gradients, a consolidated DRCL (or plain SGD) and nothing shared with the others."""

    def __init__(self, make: Callable[[nn.Module], torch.optim.Optimizer], trunk: nn.Module, image: int) -> None:
        torch.manual_seed(0)
        self.model = trunk
        self.x = torch.randn(2, 3, image, image)
        self.optimizer = make(trunk)
        if isinstance(self.optimizer, drcl.DRCL):
            self.optimizer.consolidate(trunk, [(self.x, torch.zeros(2, dtype=torch.long))])
        for p in trunk.parameters():
            p.grad = torch.randn_like(p) * 1e-6


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-6, foreach=True)


def ours(**options: object) -> Callable[[nn.Module], torch.optim.Optimizer]:
    settings = {"strength": 1.0, "splitting": "douglas-rachford", **options}
    return lambda model: drcl.DRCL(model.named_parameters(), lr=1e-6, **settings)  # type: ignore[arg-type]


def steps(rounds: int) -> dict[str, float]:
    kinds = {
        "SGD": sgd,
        "DRCL": ours(),
        "DRCL without the check for NaN": ours(check_finite=False),
        "DRCL forward-backward": ours(splitting="forward-backward"),
        "DRCL L2": ours(prox="l2"),
    }
    ready = {name: Ready(make, ResNet18((3, 32, 32)), 32) for name, make in kinds.items()}
    size = sum(p.numel() for p in ready["SGD"].model.parameters())
    arrays = [torch.randn(size) for _ in range(6)]

    def stream() -> None:
        torch.add(arrays[0], arrays[1], out=arrays[4])
        torch.add(arrays[2], arrays[3], out=arrays[5])

    medians = interleaved({**{k: r.optimizer.step for k, r in ready.items()}, "stream": stream}, rounds)
    found = show(f"Step alone, ResNet-18, {size:,} weights", medians, "SGD", {"DRCL": 2.2})
    print(f"  DRCL takes {medians['DRCL'] / medians['stream']:.2f} times the stream (target 1.50)")

    slow = {"SGD": sgd, "DRCL foreach": ours(backend="foreach"), "DRCL reference": ours(backend="reference")}
    ready = {name: Ready(make, ResNet18((3, 32, 32)), 32) for name, make in slow.items()}
    medians = interleaved({k: r.optimizer.step for k, r in ready.items()}, max(3, rounds // 4))
    found |= show("Other backends", medians, "SGD", {})

    momentum = {
        "SGD momentum": lambda m: torch.optim.SGD(m.parameters(), lr=1e-6, momentum=0.9, foreach=True),
        "DRCL momentum": ours(momentum=0.9),
        "AdamW": lambda m: torch.optim.AdamW(m.parameters(), lr=1e-6, foreach=True),
        "DRCL around AdamW": lambda m: drcl.DRCL.around(
            torch.optim.AdamW(m.named_parameters(), lr=1e-6, foreach=True),
            strength=10.0,
            splitting="douglas-rachford",
        ),
    }
    ready = {name: Ready(make, ResNet18((3, 32, 32)), 32) for name, make in momentum.items()}
    medians = interleaved({k: r.optimizer.step for k, r in ready.items()}, max(3, rounds // 2))
    show("With momentum, and around AdamW", medians, "SGD momentum", {})
    return found


def iterations(rounds: int) -> dict[str, float]:
    found = {}
    cases = {"HAT AlexNet, batch 64": (AlexNet, 64), "ResNet-18, batch 32": (ResNet18, 32)}
    for title, (trunk, batch) in cases.items():
        x, y = torch.randn(batch, 3, 32, 32), torch.randint(0, 10, (batch,))

        def iterate(ready: Ready, x: torch.Tensor = x, y: torch.Tensor = y) -> None:
            ready.optimizer.zero_grad()
            F.cross_entropy(ready.model(x), y).backward()
            ready.optimizer.step()

        kinds = {"SGD": sgd, "DRCL": ours(), "DRCL stable=0.8": ours(stable=0.8)}
        ready = {name: Ready(make, trunk((3, 32, 32)), 32) for name, make in kinds.items()}
        medians = interleaved({k: (lambda r=r: iterate(r)) for k, r in ready.items()}, rounds)
        ratios_here = show(f"Whole iteration, {title}", medians, "SGD", {"DRCL": 1.05})
        found |= {f"{title}: {name}": ratio for name, ratio in ratios_here.items()}
    return found


def state() -> None:
    ready = Ready(ours(), AlexNet((3, 32, 32)), 32)
    weights = sum(p.numel() for p in ready.model.parameters())
    print("\nState of DRCL on the AlexNet, floats per protected weight after each task (target: at most 3)")
    for task in range(1, 4):
        ready.optimizer.step()
        kept = sum(t.numel() for s in ready.optimizer.state.values() for t in s.values() if torch.is_tensor(t))
        print(f"  {task} tasks: {kept / weights:.2f}")
        ready.optimizer.consolidate(ready.model, [(ready.x, torch.zeros(2, dtype=torch.long))])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40, help="rounds of the step; iterations take a quarter of it")
    parser.add_argument("--skip-iterations", action="store_true", help="only the step and the state")
    parser.add_argument("--skip-directions", action="store_true", help="importance per weight only")
    parser.add_argument("--record", action="store_true", help="keep the ratios in results/speed")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    measured = {"step": steps(arguments.rounds)}
    if not arguments.skip_iterations:
        measured["iterations"] = iterations(max(5, arguments.rounds // 4))
    for table, found in measured.items() if arguments.record else ():
        ratios.keep(table, "time", found)
    state()
    if not arguments.skip_iterations and not arguments.skip_directions:
        kronecker.iterations(arguments.rounds, 1)


if __name__ == "__main__":
    main()
