"""Several processes on one run: the same run as on one, to within the rounding of sums."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import drcl
from drcl.lab.common import parallel
from drcl.lab.common.parallel import World
from drcl.lab.runs.config import RunConfig
from drcl.lab.runs.execute import execute
from drcl.lab.runs.read import Run

# One of a group, told who it is in the way torchrun does. It runs each config in turn.
MEMBER = """
import sys
from pathlib import Path
import torch
from drcl.lab.runs.config import RunConfig
from drcl.lab.runs.execute import execute
torch.set_num_threads(1)
for config in sorted(Path(sys.argv[1]).glob("*.toml")):
    execute(RunConfig.from_toml(config), config.with_suffix(""))
"""
OPTIONS = {"tasks": 2, "epochs": 2, "batch": 26, "model.hidden": [16], "limit_per_class": 20, "log_every": 2}
CONFIGS = {
    "sgd": ("digits-split", "sgd", {}),
    "joint": ("digits-split", "joint", {}),
    "ewc": ("digits-permuted", "ewc", {"samples": 150, "labels": "empirical"}),
    "drcl": ("digits-permuted", "drcl", {"samples": 50, "splitting": "douglas-rachford", "momentum": 0.0}),
    "plateau": ("digits-split", "sgd", {"schedule": "plateau", "valid": 0.2, "epochs": 3}),
    "lwf": ("digits-split", "lwf", {}),
    "der++": ("digits-split", "der++", {"memory": 30, "alpha": 1.0}),
    "packnet": ("digits-split", "packnet", {}),
    "kronecker": ("digits-permuted", "drcl-kronecker", {"samples": 150, "rank": 12}),
    "adam": (
        "digits-permuted",
        "drcl",
        {"samples": 150, "importance": "mas", "training.optimizer": "adam", "lr": 0.001},
    ),
}


def config(name: str, **more) -> RunConfig:
    benchmark, method, options = CONFIGS[name]
    return RunConfig.make(benchmark, method, 1, OPTIONS | options | more)


def together(folder: Path, size: int = 2) -> None:
    """Start the group and wait for it; a member that fails takes the others with it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    source = str(Path(drcl.__file__).parents[1])
    common = os.environ | {"PYTHONPATH": source, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1"}
    common |= {"MASTER_PORT": port, "WORLD_SIZE": str(size)}
    members = [
        subprocess.Popen(
            [sys.executable, "-c", MEMBER, str(folder)],
            env=common | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        ends = [member.communicate(timeout=120)[1] for member in members]
    finally:
        for member in members:
            member.kill()
    assert [member.returncode for member in members] == [0] * size, "\n".join(ends)


@pytest.fixture(scope="module")
def group(tmp_path_factory):
    folder = tmp_path_factory.mktemp("group")
    for name in CONFIGS:
        (folder / f"{name}.toml").write_text(config(name).to_toml())
    together(folder)
    return folder


@pytest.mark.parametrize("name", CONFIGS)
def test_two_processes_give_the_matrix_and_the_weights_of_one(name, group, tmp_path):
    """The batch of 26 is 13 images for each; the last one of an epoch is shorter and odd."""
    alone = execute(config(name), tmp_path / "one")
    run = Run.read(group / name)
    assert run.problems == ()
    assert run.finished
    assert run.environment["processes"] == 2
    expected = np.array([[np.nan if v is None else v for v in row] for row in alone["accuracy_matrix"]])
    # One image more or less at the border between two classes is rounding; the test sets have 70 or more.
    np.testing.assert_allclose(run.matrix, expected, atol=0.03)
    ours, theirs = load_file(tmp_path / "one" / "model.safetensors"), load_file(group / name / "model.safetensors")
    for key, value in ours.items():
        torch.testing.assert_close(theirs[key], value, rtol=2e-3, atol=2e-4)
    single = Run.read(tmp_path / "one")
    assert [(p.task, p.epoch, p.step) for p in run.curve] == [(p.task, p.epoch, p.step) for p in single.curve]
    np.testing.assert_allclose([p.loss for p in run.curve], [p.loss for p in single.curve], rtol=1e-3)
    assert run.cost["gradient_evaluations"] == single.cost["gradient_evaluations"]


def test_shares_cover_a_batch_without_overlap():
    for count in (1, 2, 7, 64):
        for size in (1, 2, 3, 8):
            rows = [i for rank in range(size) for i in range(count)[World(rank, size).share(count)]]
            assert rows == list(range(count))


def test_alone_nothing_is_exchanged():
    assert parallel.world() == World(0, 1)
    value = torch.ones(3)
    assert parallel.total(value) is value
    assert parallel.gathered(value) == [value]
    layer = torch.nn.Linear(2, 2)
    parallel.sum_gradients(layer.parameters(), 0.5)
    assert layer.weight.grad is None
