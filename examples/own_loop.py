"""Teach a network a second task without losing the first: a loop of your own, with AdamW alone and inside drcl.

    pip install "drcl[lab]"
    python examples/own_loop.py

The first task: handwritten digits. The second one: the same digits with their pixels in another order. Ends in tables
of what was kept and learned.
"""

import argparse
import copy

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

from drcl import DRCL, Retention


def task(order):
    """Batches to train on, and batches to measure on."""
    digits = load_digits()
    x = torch.tensor(digits.data, dtype=torch.float32)[:, order] / 16
    data = torch.utils.data.TensorDataset(x, torch.tensor(digits.target))
    train, test = torch.utils.data.random_split(data, [0.8, 0.2], torch.Generator().manual_seed(0))
    loader = torch.utils.data.DataLoader
    return loader(train, 32, shuffle=True, generator=torch.Generator().manual_seed(0)), list(loader(test, 64))


def learn(model, opt, batches, epochs):
    for _ in range(epochs):
        for x, y in batches:
            opt.zero_grad()
            cross_entropy(model(x), y).backward()
            opt.step()


def accuracy(model, batches):
    return sum(float((model(x).argmax(1) == y).sum()) for x, y in batches) / sum(len(y) for _, y in batches)


def main(epochs, width):
    torch.manual_seed(0)
    (first, held_first), (second, held_second) = task(torch.arange(64)), task(torch.randperm(64))
    held = {"digits": held_first, "mixed pixels": held_second}
    start = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))
    for title in ("AdamW", "AdamW inside drcl"):
        model = copy.deepcopy(start)
        opt = torch.optim.AdamW(model.named_parameters(), lr=2e-3)
        if title != "AdamW":
            opt = DRCL.around(opt)
        retention = Retention(held, ["mixed pixels"], metric=accuracy, title=f"{title}: accuracy")
        learn(model, opt, first, epochs)
        if isinstance(opt, DRCL):
            opt.consolidate(model, first)  # the end of a task: from here on it is protected
        retention.measure(model, "before")
        learn(model, opt, second, epochs)
        if isinstance(opt, DRCL):
            opt.consolidate(model, second)
        retention.measure(model, "after")
        print(f"\n{retention}\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10, help="of each task")
    parser.add_argument("--width", type=int, default=100, help="of the hidden layers")
    main(**vars(parser.parse_args()))
