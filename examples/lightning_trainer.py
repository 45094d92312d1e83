"""Teach a network a second task without losing the first: the Trainer of Lightning, alone and with drcl.

    pip install "drcl[integrations,lab]"
    python examples/lightning_trainer.py

The second task has the same digits, with their pixels permuted. Tables show what the model kept and what it learned.
"""

import argparse
import copy
import tempfile

import lightning.pytorch as pl
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

from drcl import Retention
from drcl.integrations.lightning import Continual


class Digits(pl.LightningModule):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        return self.head(self.body(x))

    def training_step(self, batch, index):
        return cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def accuracy(model, batches):
    return sum(float((model(x).argmax(1) == y).sum()) for x, y in batches) / sum(len(y) for _, y in batches)


def task(order):
    """Batches to train on, and batches to measure on."""
    digits = load_digits()
    x = torch.tensor(digits.data, dtype=torch.float32)[:, order] / 16
    data = torch.utils.data.TensorDataset(x, torch.tensor(digits.target))
    train, test = torch.utils.data.random_split(data, [0.8, 0.2], torch.Generator().manual_seed(0))
    loader = torch.utils.data.DataLoader
    return loader(train, 32, shuffle=True), list(loader(test, 64))


def fit(model, batches, epochs, folder, callbacks):
    pl.seed_everything(0, verbose=False)
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    pl.Trainer(max_epochs=epochs, callbacks=callbacks, default_root_dir=folder, **quiet).fit(model, batches)


def main(epochs, width):
    torch.manual_seed(0)
    (first, held_first), (second, held_second) = task(torch.arange(64)), task(torch.randperm(64))
    model = Digits(width)
    with tempfile.TemporaryDirectory() as folder:
        anchor = f"{folder}/digits.safetensors"
        fit(model, first, epochs, folder, [Continual(save=anchor)])
        for title, callbacks in {"Adam": [], "Adam inside drcl": [Continual(anchor=anchor)]}.items():
            learner = copy.deepcopy(model)
            held = {"digits": held_first, "mixed pixels": held_second}
            retention = Retention(held, ["mixed pixels"], metric=accuracy, title=f"{title}: accuracy")
            retention.measure(learner, "before")
            fit(learner, second, epochs, folder, callbacks)
            retention.measure(learner, "after")
            print(f"\n{retention}\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10, help="of each task")
    parser.add_argument("--width", type=int, default=100, help="of the hidden layers")
    main(**vars(parser.parse_args()))
