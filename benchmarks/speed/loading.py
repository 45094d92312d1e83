"""How fast batches come: against a per-image Dataset behind a DataLoader of two workers, and beside a
training step.

    python -m benchmarks.speed.loading [--images N] [--rounds R] [--threads T] [--record]

Both sides get the same random uint8 images, the same transforms and the same batch size, and take turns
within one run, so that the ratio holds on a busy machine too. The DataLoader's workers are started before
the clock is. Targets: 10 times more images a second, and under 3 per cent of an AlexNet training
iteration.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterable

import numpy as np
import torch
from benchmarks.speed import ratios
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from drcl.lab.networks import AlexNet
from drcl.lab.streams.examples import Examples
from drcl.lab.streams.view import View

BATCH = 64


class PerImage(Dataset[tuple[Tensor, int]]):
    """The usual way: each image is converted, cropped, flipped and normalised alone."""

    def __init__(self, examples: Examples) -> None:
        self.images, self.labels = torch.from_numpy(examples.source), examples.labels
        view = examples.view
        self.mean = torch.tensor(view.mean).view(-1, 1, 1)
        self.std = torch.tensor(view.std).view(-1, 1, 1)
        self.crop, self.flip = view.crop, view.flip

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = self.images[index].to(torch.float32).div_(255)
        if self.crop:
            height, width = image.shape[1:]
            image = F.pad(image, [self.crop] * 4)
            y, x = torch.randint(0, 2 * self.crop + 1, (2,)).tolist()
            image = image[:, y : y + height, x : x + width]
        if self.flip and torch.rand(()) < 0.5:
            image = image.flip(2)
        return (image - self.mean) / self.std, int(self.labels[index])


def seconds(batches: Iterable[tuple[Tensor, Tensor]], count: int) -> float:
    """Time to see `count` images."""
    seen = 0
    start = time.perf_counter()
    for x, _ in batches:
        seen += len(x)
    assert seen == count
    return time.perf_counter() - start


def compare(name: str, examples: Examples, rounds: int) -> float:
    count = len(examples)
    loader = DataLoader(PerImage(examples), batch_size=BATCH, shuffle=True, num_workers=2, persistent_workers=True)
    seconds(loader, count)  # starts the workers
    seconds(examples.batches(BATCH), count)
    ours, theirs = [], []
    for turn in range(rounds):
        # An epoch of ours is short: several, so that both sides are measured over a comparable time.
        ours.append(sum(seconds(examples.batches(BATCH, epoch=10 * turn + i), count) for i in range(5)) / 5)
        theirs.append(seconds(loader, count))
    ratio = statistics.median(b / a for a, b in zip(ours, theirs))
    rates = [count / statistics.median(times) for times in (ours, theirs)]
    print(f"{name:32} {rates[0]:12,.0f} {rates[1]:12,.0f} {ratio:8.1f}x")
    return ratio


def share_of_iteration(name: str, examples: Examples, rounds: int) -> float:
    network = torch.nn.Sequential(AlexNet(examples.shape), torch.nn.Linear(2048, 10))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    x, y = next(iter(examples.batches(BATCH)))

    def iteration() -> None:
        optimizer.zero_grad()
        F.cross_entropy(network(x), y).backward()
        optimizer.step()

    steps, epochs = 5, len(examples) // BATCH
    shares, step_times = [], []
    iteration()
    for turn in range(rounds):
        step = timed(iteration, steps)
        batch = seconds(examples.batches(BATCH, epoch=turn, drop_last=True), epochs * BATCH) / epochs
        step_times.append(step)
        shares.append(batch / (batch + step))
    share = statistics.median(shares)
    print(f"{name:32} {1e3 * statistics.median(step_times):10.1f} ms a step {100 * share:12.2f} %")
    return share


def timed(call: Callable[[], None], times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - start) / times


def sets(count: int) -> dict[str, Examples]:
    rng = np.random.default_rng(0)
    made = {}
    for side, channels in ((28, 1), (32, 3)):
        images = rng.integers(0, 256, (count, channels, side, side), dtype=np.uint8)
        labels = rng.integers(0, 10, count)
        for word, more in (("", {}), (", crop and flip", {"crop": 4, "flip": True})):
            view = View((0.5,) * channels, (0.25,) * channels, **more)
            made[f"{channels}x{side}x{side}{word}"] = Examples(images, np.arange(count), labels, view)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--images", type=int, default=12_800)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--record", action="store_true", help="keep the ratios in results/speed")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    made = sets(given.images)
    print(f"{'images a second':32} {'drcl':>12} {'DataLoader':>12} {'ratio':>9}")
    rates = {name: compare(name, examples, given.rounds) for name, examples in made.items()}
    print(f"\n{'share of an AlexNet iteration':32}")
    shares = {name: share_of_iteration(name, examples, given.rounds) for name, examples in made.items()}
    print(
        f"\nsmallest ratio {min(rates.values()):.1f}x, wanted 10x; largest share {max(shares.values()):.2%}, wanted 3 %"
    )
    if given.record:
        ratios.keep("loading", "rate", rates)
        ratios.keep("loading", "share", shares)


if __name__ == "__main__":
    main()
