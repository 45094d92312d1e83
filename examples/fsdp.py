"""Teach a sharded network a second task without losing the first: FSDP2 on several processes, alone and with drcl.

    pip install "drcl[lab]"
    torchrun --nproc-per-node 2 examples/fsdp.py

The second task: the same digits with their pixels in another order. Ends in tables of what was kept and learned.
"""

import argparse
import os

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy

from drcl import DRCL, Retention


def network(width):
    torch.manual_seed(0)  # the same weights on every process, of which each keeps its rows
    body = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
    return fully_shard(nn.Sequential(fully_shard(body), nn.Linear(width, 10)))


def task(order):
    """This process's share of the batches to train on, and batches to measure on, the same for all."""
    digits = load_digits()
    x, y = torch.tensor(digits.data, dtype=torch.float32)[:, order] / 16, torch.tensor(digits.target)
    rows = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    test, train, batch = rows[:300], rows[300:], 32 * dist.get_world_size()
    even = train[: len(train) // batch * batch].view(-1, batch)  # all processes have to take as many steps
    return [(x[i], y[i]) for i in even.split(32, 1)[dist.get_rank()]], [(x[i], y[i]) for i in test.split(100)]


def fit(model, opt, batches, epochs):
    for _ in range(epochs):
        for x, y in batches:
            opt.zero_grad()
            cross_entropy(model(x), y.to(next(model.parameters()).device)).backward()
            opt.step()


def accuracy(model, batches):
    return sum(float((model(x).argmax(1).cpu() == y).sum()) for x, y in batches) / sum(len(y) for _, y in batches)


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=2e-3)


def main(epochs, width):
    dist.init_process_group()
    first, old = task(torch.arange(64))
    second, new = task(torch.randperm(64, generator=torch.Generator().manual_seed(1)))
    held = {"digits": old, "mixed pixels": new}
    fit(model := network(width), opt := DRCL.around(adamw(model)), first, epochs)
    opt.consolidate(model, first)  # each process has its own batches; all get the importance of all of them
    anchor = opt.anchor  # gathered: every process asks, and one may save it to a file
    for title in ("AdamW", "AdamW inside drcl"):
        learner = network(width)
        opt = adamw(learner) if title == "AdamW" else DRCL.around(adamw(learner))
        anchor.restore(learner) if title == "AdamW" else opt.protect(learner, anchor)
        retention = Retention(held, ["mixed pixels"], metric=accuracy, title=f"{title}: accuracy")
        retention.measure(learner, "before")
        fit(learner, opt, second, epochs)
        retention.measure(learner, "after", None if title == "AdamW" else opt)
        if dist.get_rank() == 0:
            print(f"\n{retention}\n", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=8, help="of each task")
    parser.add_argument("--width", type=int, default=100, help="of the hidden layers")
    main(**vars(parser.parse_args()))
    os._exit(0)  # torch keeps gloo's threads; one that frees a tensor while Python shuts down would abort the process
