"""The notebooks of this folder: written here as text, run, and stored with what they print.

python docs/notebooks/make.py            # all
python docs/notebooks/make.py own_loop   # one
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent

OWN_LOOP = [
    """# Your own loop

Two tasks, one network, two heads. First SGD, then DRCL.""",
    """
import torch
from torch import nn

import drcl

generator = torch.Generator().manual_seed(0)
centres = torch.randn(2, 40, 10, generator=generator)


def task(number, count=60):
    clouds = torch.randint(40, (count, 32), generator=generator)  # forty clouds of points, ten per class
    noise = torch.randn(count, 32, 10, generator=generator)
    return [(centres[number][cloud] + 0.3 * e, cloud % 4) for cloud, e in zip(clouds, noise)]


train, test = [task(0), task(1)], [task(0), task(1)]
""",
    """A body that both tasks share, and a head for each.""",
    """
def network():
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
    return nn.ModuleDict({"body": body, "heads": nn.ModuleList([nn.Linear(64, 4), nn.Linear(64, 4)])})


def answer(model, number, x):
    return model["heads"][number](model["body"](x))


def accuracy(model, number):
    with torch.no_grad():
        right = [(answer(model, number, x).argmax(1) == y).float().mean() for x, y in test[number]]
    return f"{torch.stack(right).mean():.0%}"


def learn(model, opt, number, epochs=10):
    for _ in range(epochs):
        for x, y in train[number]:
            opt.zero_grad()
            nn.functional.cross_entropy(answer(model, number, x), y).backward()
            opt.step()
""",
    """SGD:""",
    """
model = network()
opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for number in (0, 1):
    learn(model, opt, number)
    print("after task", number + 1, "accuracy on task 1 is", accuracy(model, 0))
print("accuracy on task 2 is", accuracy(model, 1))
""",
    """DRCL, with one more call at the end of each task:""",
    """
model = network()
groups = [
    {"params": list(model["body"].named_parameters("body"))},
    {"params": list(model["heads"].named_parameters("heads")), "free": True},
]
opt = drcl.DRCL(groups, lr=0.1, momentum=0.9)
for number in (0, 1):
    learn(model, opt, number)
    opt.consolidate(model, train[number], forward=lambda model, batch: (answer(model, number, batch[0]), batch[1]))
    print("after task", number + 1, "accuracy on task 1 is", accuracy(model, 0))
print("accuracy on task 2 is", accuracy(model, 1))
""",
    """The anchor is all that the next task needs. It fits into a file.""",
    """
opt.anchor.save("model.anchor.safetensors")
print(drcl.Anchor.load("model.anchor.safetensors", model))
""",
]

TRANSFORMER = [
    """# A small transformer

Sequences of eight tokens. Task 1: which token is the largest? Task 2: which is the smallest?""",
    """
import torch
from torch import nn

import drcl

generator = torch.Generator().manual_seed(0)


def task(largest, count=60):
    batches = []
    for _ in range(count):
        tokens = torch.randint(10, (32, 8), generator=generator)
        batches.append((tokens, tokens.max(1).values if largest else tokens.min(1).values))
    return batches


train, test = [task(True), task(False)], [task(True, 10), task(False, 10)]
""",
    """One encoder layer, a head for each task.""",
    """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(10, 32)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.heads = nn.ModuleList([nn.Linear(32, 10), nn.Linear(32, 10)])
        self.task = 0

    def forward(self, tokens):
        return self.heads[self.task](self.layer(self.embed(tokens)).mean(1))


def accuracy(model, number):
    model.task = number
    with torch.no_grad():
        right = [(model(x).argmax(1) == y).float().mean() for x, y in test[number]]
    return f"{torch.stack(right).mean():.0%}"


def learn(model, opt, number, epochs=5):
    model.task = number
    for _ in range(epochs):
        for x, y in train[number]:
            opt.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            opt.step()


def adamw(model):
    body = [p for name, p in model.named_parameters() if "heads" not in name]
    groups = [{"params": body}, {"params": list(model.heads.parameters()), "free": True}]
    return torch.optim.AdamW(groups, lr=3e-3)
""",
    """AdamW alone:""",
    """
model = Model()
opt = adamw(model)
learn(model, opt, 0)
print("task 1 when learned:", accuracy(model, 0))
learn(model, opt, 1)
print("task 1 and task 2 at the end:", accuracy(model, 0), accuracy(model, 1))
""",
    """DRCL around AdamW, which makes the proposals. Attention and linear maps are held along directions, norms and the
embedding weight by weight.""",
    """
model = Model()
opt = drcl.DRCL.around(adamw(model))
learn(model, opt, 0)
opt.consolidate(model, train[0])
print("task 1 when learned:", accuracy(model, 0))
learn(model, opt, 1)
opt.consolidate(model, train[1])
print("task 1 and task 2 at the end:", accuracy(model, 0), accuracy(model, 1))
""",
]

LAB = [
    """# The laboratory

Three methods on the same three tasks, the same network and the same budget.""",
    """
from drcl.lab.runs.config import RunConfig
from drcl.lab.runs.execute import execute

for method in ("sgd", "ewc", "drcl-kronecker"):
    config = RunConfig.make("digits-permuted", method, seed=0, options={"tasks": 3, "epochs": 5})
    result = execute(config, f"runs/{method}")
    print(f"{method:15} {result['average_accuracy']:.1%}  backward transfer {100 * result['backward_transfer']:+.1f}")
""",
    """Each run left a directory. The matrix says how good each task is (column) after each task (row).""",
    """
from drcl.lab.runs.read import find

for run in find(["runs"]):
    print(run.method)
    for row in run.matrix:
        print("  ", *(f"{value:6.1%}" for value in row if value == value))
""",
    """In the terminal: `drcl run digits-permuted -m ewc -o tasks=3 -o epochs=5`. Then `drcl report runs` makes a page.

A stream of tasks is a plain sequence, for any loop of your own:""",
    """
from drcl.lab import benchmarks

stream = benchmarks.get("digits-permuted").stream(seed=0, tasks=3)
for task in stream:
    print(task)
""",
]

NOTEBOOKS = {"own_loop": OWN_LOOP, "transformer": TRANSFORMER, "lab": LAB}


def made(parts: list[str]) -> dict[str, Any]:
    """The notebook, with what its cells print. A part that begins with a line break is code."""
    cells: list[dict[str, Any]] = []
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for number, part in enumerate(parts):
        text = part.strip()
        cell: dict[str, Any] = {"id": f"cell{number}", "metadata": {}, "source": text.splitlines(keepends=True)}
        if part.startswith("\n"):
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(text, f"cell {number}", "exec"), namespace)
            said = printed.getvalue().splitlines(keepends=True)
            shown = [{"name": "stdout", "output_type": "stream", "text": said}] if said else []
            cell |= {"cell_type": "code", "execution_count": None, "outputs": shown}
        else:
            cell |= {"cell_type": "markdown"}
        cells.append(cell)
    about = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return {"cells": cells, "metadata": about, "nbformat": 4, "nbformat_minor": 5}


def main() -> None:
    for name in sys.argv[1:] or NOTEBOOKS:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            notebook = made(NOTEBOOKS[name])
        (HERE / f"{name}.ipynb").write_text(json.dumps(notebook, indent=1, sort_keys=True, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
