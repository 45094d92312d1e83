"""What the diagonal Fisher costs, as a multiple of one plain forward and backward pass over the same samples.

    python -m benchmarks.speed.fisher [--samples 1000] [--repeats 5] [--peers] [--nets mlp alexnet] [--record]

Plain pass and estimate are timed in turns in one process and compared by the ratio of their medians, so that
a busy machine disturbs both alike. Peak memory is the largest amount of tensor memory alive above what was
there before, from torch's own allocation records.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from benchmarks.speed import ratios
from tests.nets import ResNet18, alexnet, mlp, settle_statistics
from torch import nn
from torch.profiler import ProfilerActivity, profile

from drcl.importance import Fisher
from drcl.per_sample.fallback import one_by_one

NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], float]] = {
    "mlp": (mlp, (784,), 1.3),
    "alexnet": (alexnet, (3, 32, 32), 1.3),
    "resnet18": (ResNet18, (3, 32, 32), 1.5),
}
Batches = list[tuple[torch.Tensor, torch.Tensor]]


def plain_pass(model: nn.Module, batches: Batches, together: bool = False) -> None:
    """What training does with these samples, without the optimizer: each batch's gradient, or the sum."""
    model.eval()
    model.zero_grad()
    for x, y in batches:
        F.cross_entropy(model(x), y).backward()
        if not together:
            model.zero_grad()


def estimate(model: nn.Module, batches: Batches, samples: int) -> None:
    Fisher(samples=samples).estimate(model, batches, dict(model.named_parameters()))


def squared_by_vmap(model: nn.Module, batches: Batches) -> None:
    """The usual advice: torch.func.vmap over grad, then square and sum."""
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss(weights: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(torch.func.functional_call(model, weights, (x[None],)), y[None])

    gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0), chunk_size=16)
    totals = {name: torch.zeros_like(p) for name, p in parameters.items()}
    for x, y in batches:
        for name, g in gradients(parameters, x, y).items():
            totals[name] += g.square().sum(0)


def squared_by_loop(model: nn.Module, batches: Batches) -> None:
    """The definition: one sample at a time."""
    parameters = dict(model.named_parameters())
    totals = {name: torch.zeros_like(p, requires_grad=False) for name, p in parameters.items()}
    for x, y in batches:
        with torch.no_grad():
            v = model(x).softmax(1) - F.one_hot(y, 10)
        one_by_one(
            model,
            (x,),
            parameters,
            lambda m, b: (m(b[0]), None),
            [[v]],
            lambda n, g: totals[n].addcmul_(g, g),
        )


def peer_backpack(model: nn.Module, batches: Batches) -> None:
    from backpack import backpack, extend  # type: ignore[import-not-found]
    from backpack.extensions import SumGradSquared  # type: ignore[import-not-found]

    model, criterion = extend(model), extend(nn.CrossEntropyLoss(reduction="sum"))
    for x, y in batches:
        model.zero_grad()
        with backpack(SumGradSquared()):
            criterion(model(x), y).backward()


def seconds(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def peak_bytes(work: Callable[[], None]) -> int:
    """The largest sum of live allocations during `work`, above those alive before it."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        work()
    alive = peak = 0
    for event in recorded.profiler.kineto_results.events():
        if event.name() == "[memory]":
            alive += event.nbytes()
            peak = max(peak, alive)
    return peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--nets", nargs="+", choices=NETS, default=["mlp", "alexnet"])
    parser.add_argument("--peers", action="store_true", help="time vmap, the loop and BackPACK (if there) too")
    parser.add_argument("--record", action="store_true", help="keep the ratios in results/speed")
    options = parser.parse_args()
    generator = torch.Generator().manual_seed(0)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} thread(s), {options.samples} samples")
    for name in options.nets:
        build, shape, target = NETS[name]
        torch.manual_seed(0)
        model = settle_statistics(build()).eval()
        x = torch.randn(options.samples, *shape, generator=generator)
        y = torch.randint(10, (options.samples,), generator=generator)
        batches = list(zip(x.split(options.batch), y.split(options.batch)))
        work: dict[str, Callable[[], None]] = {
            "plain pass": lambda m=model, b=batches: plain_pass(m, b),
            "plain summed": lambda m=model, b=batches: plain_pass(m, b, together=True),
            "drcl.Fisher": lambda m=model, b=batches: estimate(m, b, options.samples),
        }
        if options.peers:
            work["vmap"] = lambda m=model, b=batches: squared_by_vmap(m, b)
            work["one by one"] = lambda m=model, b=batches: squared_by_loop(m, b)
            try:
                import backpack  # type: ignore[import-not-found]  # noqa: F401

                work["BackPACK"] = lambda m=model, b=batches: peer_backpack(m, b)
            except ImportError:
                pass
        times: dict[str, list[float]] = {key: [] for key in work}
        for repeat in range(options.repeats + 1):
            for key, run in work.items():
                spent = seconds(run)
                if repeat:  # the first round warms up
                    times[key].append(spent)
        plain = statistics.median(times["plain pass"])
        few = batches[: max(2, 256 // options.batch)]
        memory = {
            "plain pass": peak_bytes(lambda m=model, b=few: plain_pass(m, b)),  # type: ignore[misc]
            "plain summed": peak_bytes(lambda m=model, b=few: plain_pass(m, b, True)),  # type: ignore[misc]
            "drcl.Fisher": peak_bytes(lambda m=model, b=few: estimate(m, b, options.samples)),  # type: ignore[misc]
        }
        for key, found in times.items():
            middle = statistics.median(found)
            line = f"{name:9} {key:12} {middle * 1e3:9.1f} ms  x{middle / plain:5.2f}"
            if key in memory:
                line += f"   peak {memory[key] / 2**20:7.1f} MB  x{memory[key] / memory['plain pass']:5.2f}"
            if key == "drcl.Fisher":
                line += f"   target x{target}"
            print(line, flush=True)
        if options.record:
            ratios.keep("importance", "time", {name: statistics.median(times["drcl.Fisher"]) / plain})
            ratios.keep("importance", "memory", {name: memory["drcl.Fisher"] / memory["plain pass"]})


if __name__ == "__main__":
    main()
