"""Teach a network one task after the other: a strategy of Avalanche, alone and with drcl.

    pip install "drcl[lab]" avalanche-lib
    python examples/avalanche_strategy.py

Each experience has the digits with their pixels in another order. Ends in tables of what was kept and learned.
"""

import argparse

import torch
from avalanche.benchmarks import benchmark_from_datasets
from avalanche.benchmarks.utils import as_classification_dataset
from avalanche.benchmarks.utils.data import make_avalanche_dataset
from avalanche.benchmarks.utils.data_attribute import DataAttribute
from avalanche.training import Naive
from avalanche.training.plugins import EvaluationPlugin
from sklearn.datasets import load_digits
from torch import nn

from drcl import Retention
from drcl.integrations.avalanche import Continual


def digits(order):
    """Samples to train on, and batches to measure on."""
    found = load_digits()
    x, y = torch.tensor(found.data, dtype=torch.float32)[:, order] / 16, torch.tensor(found.target)
    cut = int(0.8 * len(x))
    data = torch.utils.data.TensorDataset(x[:cut], y[:cut])
    labels = DataAttribute(y[:cut].tolist(), "targets")
    train = as_classification_dataset(make_avalanche_dataset(data, data_attributes=[labels]))
    return train, list(zip(x[cut:].split(64), y[cut:].split(64)))


def accuracy(model, batches):
    return sum(float((model(x).argmax(1) == y).sum()) for x, y in batches) / sum(len(y) for _, y in batches)


def main(epochs, width, experiences):
    torch.manual_seed(0)
    orders = [torch.arange(64), *(torch.randperm(64) for _ in range(experiences - 1))]
    tasks = {f"order {k}": digits(order) for k, order in enumerate(orders)}
    benchmark = benchmark_from_datasets(train=[train for train, _ in tasks.values()])
    probes, last = {name: held for name, (_, held) in tasks.items()}, f"order {experiences - 1}"
    for title in ("Naive", "Naive with drcl"):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))
        strategy = Naive(
            model=model,
            optimizer=torch.optim.AdamW(model.parameters(), lr=2e-3),
            criterion=nn.CrossEntropyLoss(),
            train_mb_size=32,
            train_epochs=epochs,
            plugins=[] if title == "Naive" else [Continual()],
            evaluator=EvaluationPlugin(),
        )
        retention = Retention(probes, [last], metric=accuracy, title=f"{title}: accuracy")
        for experience in benchmark.train_stream:
            if experience.current_experience == experiences - 1:
                retention.measure(model, "before")
            strategy.train(experience)
        retention.measure(model, "after")
        print(f"\n{retention}\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10, help="of each experience")
    parser.add_argument("--width", type=int, default=100, help="of the hidden layers")
    parser.add_argument("--experiences", type=int, default=3, help="how many of them")
    main(**vars(parser.parse_args()))
