"""What protecting directions costs: iterations as ratios to SGD's, consolidation in training passes, bytes per weight.

    python -m benchmarks.speed.kronecker [iterations] [variants] [consolidation] [memory] [--rounds R] [--repeat N]
                                         [--record]

iterations     the default, four times on each network: whole iterations (forward, backward, step) against SGD's, taken
               in turn in one process. Negotiation comes once in ten steps, so a turn is ten iterations. Target: at
               most 1.15.
variants       the same once, for other ranks and periods.
consolidation  seconds as a multiple of one ordinary training pass over the same samples, with one pass and with two.
               Targets: reduced ResNet-18 at most 10 per cent of ten epochs of 4,800 images, CNN on Omniglot's 448
               images of a task at most one epoch, a decoder of six layers at most 1.5 passes.
memory         bytes per weight that an optimizer holds after a task, beside the model.

Inputs have the spectrum of pictures and the networks are trained for some steps first. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from benchmarks.speed import ratios
from torch import Tensor, nn
from torch.nn import functional as F

import drcl
from drcl.lab.networks import MLP, AlexNet
from drcl.lab.networks.cnn import SmallCNN
from drcl.lab.networks.resnet import ReducedResNet18, ResNet18

TARGET = 1.15
DEFAULT = "as it comes, every 10 steps"


class Block(nn.Module):
    """Attention and two wide layers, each behind a norm and beside a shortcut."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.norms = heads, nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.inside = nn.ModuleList(nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norms[0](x)
        q, k, v = (f(h).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in self.inside[:3])
        x = x + self.inside[3](F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


def decoder(width: int = 128, layers: int = 6) -> nn.Module:
    return nn.Sequential(nn.Embedding(256, width), *(Block(width) for _ in range(layers)), nn.Linear(width, 256))


# How it is built, the shape of an input (None: 128 tokens), samples in a batch, samples in all, classes.
NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...] | None, int, int, int]] = {
    "mlp": (lambda: nn.Sequential(MLP((1, 28, 28), (1000, 1000)), nn.Linear(1000, 10)), (1, 28, 28), 128, 1000, 10),
    "alexnet": (lambda: nn.Sequential(AlexNet((3, 32, 32)), nn.Linear(2048, 10)), (3, 32, 32), 64, 1000, 10),
    "resnet": (
        lambda: nn.Sequential(ReducedResNet18((1, 32, 32), norm="per-task"), nn.Linear(160, 10)),
        *((1, 32, 32), 64, 1000, 10),
    ),
    "cnn": (lambda: nn.Sequential(SmallCNN((1, 28, 28)), nn.Linear(128, 32)), (1, 28, 28), 32, 448, 32),
    "decoder": (decoder, None, 16, 512, 256),
}
VARIANTS: dict[str, tuple[int, dict[str, Any]]] = {
    "every direction, every step": (1, {"rank": None}),
    "every direction, every 10 steps": (10, {"rank": None}),
    "256 of inputs and outputs, every 10 steps": (10, {"output_rank": None}),
    "128 of inputs, 64 of outputs, every 10 steps": (10, {"rank": 128}),
    "512 of inputs, 64 of outputs, every 10 steps": (10, {"rank": 512}),
    "as it comes, every 5 steps": (5, {}),
    "as it comes, every 20 steps": (20, {}),
}


def inputs(shape: tuple[int, ...] | None, samples: int, generator: torch.Generator) -> Tensor:
    """Noise whose spectrum falls as that of pictures does; or tokens."""
    if shape is None:
        return torch.randint(256, (samples, 128), generator=generator)
    height, width = shape[1:]
    rows, columns = torch.fft.fftfreq(height)[:, None], torch.fft.rfftfreq(width)
    noise = torch.fft.rfft2(torch.randn(samples, *shape, generator=generator))
    x = torch.fft.irfft2(noise / (rows.square() + columns.square() + height**-2).sqrt(), s=(height, width))
    return x / x.std()


class Ready:
    """A model of its own, trained for some steps; with an optimizer that has a task behind it, if it is ours."""

    def __init__(self, net: str, steps: int | None = None, options: dict[str, Any] | None = None) -> None:
        build, shape, self.batch, samples, classes = NETS[net]
        torch.manual_seed(0)
        generator = torch.Generator().manual_seed(0)
        self.model, self.at = build(), 0
        self.x = inputs(shape, samples, generator)
        self.y = torch.randint(classes, self.x.shape[: 2 if shape is None else 1], generator=generator)
        named = self.model.named_parameters()
        if steps is None:
            self.optimizer: Any = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9, foreach=True)
        else:
            self.optimizer = drcl.DRCL(named, lr=1e-3, momentum=0.9, preset="auto", plasticity_steps=steps)
        self.iterate(10)
        if steps is not None:
            self.optimizer.consolidate(self.model, self.data(), importance=drcl.Kronecker(**(options or {})))

    def data(self) -> list[tuple[Tensor, Tensor]]:
        return list(zip(self.x.split(self.batch), self.y.split(self.batch)))

    def iterate(self, times: int) -> float:
        """Seconds of one of so many iterations."""
        start = time.perf_counter()
        for _ in range(times):
            self.at = self.at % (len(self.x) - self.batch + 1)
            some = slice(self.at, self.at + self.batch)
            self.optimizer.zero_grad()
            F.cross_entropy(self.model(self.x[some]).flatten(0, -2), self.y[some].flatten()).backward()
            self.optimizer.step()
            self.at += self.batch
        return (time.perf_counter() - start) / times


def ratio(net: str, rounds: int, steps: int, options: dict[str, Any]) -> tuple[float, float]:
    """Seconds of an iteration of SGD, and ours as a multiple: the median over turns."""
    plain, ours = Ready(net), Ready(net, steps, options)
    turn = max(steps, 10)
    plain.iterate(turn), ours.iterate(turn)
    times = [(plain.iterate(turn), ours.iterate(turn)) for _ in range(max(3, rounds // turn))]
    return statistics.median(a for a, _ in times), statistics.median(b / a for a, b in times)


def iterations(rounds: int, repeat: int, record: bool = False) -> None:
    for net, name in (("mlp", "MLP 1000-1000, batch 128"), ("alexnet", "HAT AlexNet, batch 64")):
        found = [ratio(net, rounds if net == "mlp" else rounds // 3, 10, {}) for _ in range(repeat)]
        told = ", ".join(f"{r:.2f}" for _, r in found)
        verdict = "met" if max(r for _, r in found) <= TARGET else "missed"
        print(f"{name}: {found[0][0] * 1e3:.1f} ms by SGD; times SGD: {told} (target {TARGET}: {verdict})", flush=True)
        if record:
            ratios.keep("directions", net, {DEFAULT: statistics.median(r for _, r in found)})


def variants(rounds: int, record: bool = False) -> None:
    print("| negotiation | MLP 1000-1000, batch 128 | HAT AlexNet, batch 64 |\n|---|---|---|")
    for name, (steps, options) in VARIANTS.items():
        turns = {"mlp": rounds // 2, "alexnet": rounds // 6}
        found = {net: ratio(net, some, steps, options)[1] for net, some in turns.items()}
        print(f"| {name} | {' | '.join(f'{r:.2f}' for r in found.values())} |", flush=True)
        for net, value in found.items() if record else ():
            ratios.keep("directions", net, {name: value})


def consolidation(repeat: int, record: bool = False) -> None:
    print("| network | samples | two passes | one pass | target |\n|---|---|---|---|---|")
    targets = {"resnet": "4.8: 10 % of ten epochs of 4,800", "cnn": "1: one epoch", "decoder": "1.5"}
    for net in ("mlp", "cnn", "alexnet", "resnet", "decoder"):
        plain, cells = Ready(net), []
        batches = -(-len(plain.x) // plain.batch)
        for passes in (2, 1):
            found = []
            for _ in range(min(repeat, 3)):
                epoch = plain.iterate(batches) * batches
                opt = drcl.DRCL(plain.model.named_parameters(), lr=1e-3, preset="directions")
                start = time.perf_counter()
                opt.consolidate(plain.model, plain.data(), importance=drcl.Kronecker(passes=passes))
                found.append((time.perf_counter() - start) / epoch)
            cells.append(f"{statistics.median(found):.1f}")
            if record:
                ratios.keep("consolidation", {1: "one", 2: "two"}[passes], {net: statistics.median(found)})
        print(f"| {net} | {len(plain.x)} | {' | '.join(cells)} | {targets.get(net, '')} |", flush=True)


def memory(record: bool = False) -> None:
    """After one task, without momentum; float32 throughout."""
    print("| network | weights | `Fisher()` | `Kronecker()` | `Kronecker(rank=None)` | `Kronecker(memory=model)` |")
    print("|---|---|---|---|---|---|")
    shapes = {
        "MLP 784-1000-1000-10": (NETS["mlp"][0], torch.randn(8, 1, 28, 28)),
        "HAT AlexNet": (NETS["alexnet"][0], torch.randn(8, 3, 32, 32)),
        "ResNet-18": (
            lambda: nn.Sequential(ResNet18((3, 32, 32), norm="group"), nn.Linear(512, 10)),
            torch.randn(4, 3, 32, 32),
        ),
        "transformer block, width 768": (lambda: nn.Sequential(Block(768, 12)), torch.randn(4, 8, 768)),
    }
    for name, (build, x) in shapes.items():
        torch.manual_seed(0)
        weights, cells = sum(p.numel() for p in build().parameters()), []
        estimators = {
            "fisher": drcl.Fisher(),
            "kronecker": drcl.Kronecker(),
            "all": drcl.Kronecker(rank=None),
            "bounded": drcl.Kronecker(memory=4 * weights),
        }
        for measure, estimator in estimators.items():
            model = build()
            opt = drcl.DRCL(model.named_parameters(), lr=1e-3, preset="directions")
            labels = torch.randint(10, x.shape[:2] if x.ndim == 3 else x.shape[:1])
            opt.consolidate(model, [(x, labels)], importance=estimator)
            held = sum(t.nbytes for s in opt.state.values() for t in s.values() if torch.is_tensor(t))
            held += sum(t.nbytes for layer in opt.progress.layers.values() for t in layer.basis.tensors().values())
            cells.append(f"{held / weights:.1f}")
            if record:
                ratios.keep("memory", measure, {name: held / weights})
        print(f"| {name} | {weights / 1e6:.1f} million | {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = ("iterations", "variants", "consolidation", "memory")
    parser.add_argument("parts", nargs="*", metavar="part", help=f"{', '.join(parts)}; all but variants if left out")
    parser.add_argument(
        "--rounds", type=int, default=240, help="iterations of the MLP in a run; a third of the AlexNet"
    )
    parser.add_argument("--repeat", type=int, default=4, help="runs")
    parser.add_argument("--record", action="store_true", help="keep what is measured in results/speed")
    arguments = parser.parse_args()
    chosen = arguments.parts or ["iterations", "consolidation", "memory"]
    for part in chosen:
        if part not in parts:
            parser.error(f"{part!r} is none of {', '.join(parts)}")
    warnings.simplefilter("ignore")
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    if "iterations" in chosen:
        iterations(arguments.rounds, arguments.repeat, arguments.record)
    if "variants" in chosen:
        variants(arguments.rounds, arguments.record)
    if "consolidation" in chosen:
        consolidation(arguments.repeat, arguments.record)
    if "memory" in chosen:
        memory(arguments.record)


if __name__ == "__main__":
    main()
