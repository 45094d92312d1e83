"""Every method on every kind of network the benchmarks have: it finishes, with its cost told, or it is refused with a
sentence. What is refused follows from the papers: a method that reads the task's number needs it, and one that was
never defined for norm layers or residual additions is not run on them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from drcl.lab import methods
from drcl.lab.runs.config import RunConfig
from drcl.lab.runs.execute import execute

# Gates, masks and scaling matrices are chosen by the task's number, in answers too.
NEEDS_TASK_IDS = {"hat", "wsn", "packnet", "trgp", "cuber", "ibpcl", "ban"}
# Gates, per-unit and per-weight normal variables: their papers have no norm layers, and no rule for them.
WITHOUT_NORMS = {"hat", "ucl", "mesu", "evcl", "ibpcl", "ban"}

# A benchmark, its network, and who cannot take it
WORLDS = {
    "mlp, permuted": ("digits-permuted", {"kind": "mlp", "hidden": [12, 10]}, NEEDS_TASK_IDS),
    "mlp, split": ("digits-split", {"kind": "mlp", "hidden": [12, 10]}, set()),
    "alexnet": ("cifar100-10", {"kind": "alexnet", "width": 0.03}, set()),
    "alexnet of gpm": ("cifar100-10", {"kind": "alexnet-gpm", "width": 0.03}, WITHOUT_NORMS),
    "resnet": ("cifar100-10", {"kind": "resnet18-reduced", "filters": 2, "norm": "per-task"}, WITHOUT_NORMS),
}
USUAL = {"tasks": 2, "steps": 3, "batch": 10, "lr": 0.001, "limit_per_class": 2, "valid": 0.0, "first_epoch": False}


@pytest.fixture(scope="module")
def cifar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """CIFAR-100 in its binary form: a coarse and a fine label, then 3,072 bytes; two noisy images per class."""
    root = tmp_path_factory.mktemp("data")
    folder = root / "cifar-100-binary"
    folder.mkdir()
    rng = np.random.default_rng(0)
    fine = np.tile(np.arange(100), 2)
    images = rng.integers(60, 196, (100, 3072))[fine] + rng.integers(-60, 60, (200, 3072))
    rows = np.concatenate([np.stack([fine // 5, fine], 1), images], 1).astype(np.uint8)
    for part in ("train", "test"):
        (folder / f"{part}.bin").write_bytes(rows.tobytes())
    return root


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("method", methods.names())
def test_it_finishes_or_is_refused_with_a_sentence(method, world, cifar, tmp_path):
    benchmark, model, refused = WORLDS[world]
    config = RunConfig.make(benchmark, method, 0, USUAL | {"model": model})
    if method in refused:
        with pytest.raises(ValueError) as refusal:
            execute(config, tmp_path / "run", data_root=cifar)
        said = str(refusal.value)
        assert said.startswith(f"{method}: ")
        assert ": use " in said  # the remedy
        assert "\n" not in said
        return
    result = execute(config, tmp_path / "run", data_root=cifar)
    assert result["finished"] is True
    assert 0 <= result["average_accuracy"] <= 1
    assert all(0 <= value <= 1 for value in result["accuracy_matrix"][-1])
    weights = load_file(tmp_path / "run" / "model.safetensors")
    assert all(np.isfinite(w).all() for w in weights.values())

    cost = json.loads((tmp_path / "run" / "cost.json").read_text())
    tasks = 1 if method == "joint" else 2  # trained
    assert len(cost["per_task_seconds"]) == tasks
    for phase in ("training", "evaluation"):
        assert 0 < cost[phase]["seconds"] < math.inf
    assert cost["gradient_evaluations"] >= 3 * (1 if method == "sb-mcl" else tasks)  # its encoder is frozen then
    assert type(cost["state_bytes"]) is int
    assert (cost["state_bytes"] == 0) == (method in ("sgd", "joint"))
    assert cost["parameters"] >= sum(w.size for n, w in weights.items() if n.startswith("heads."))
