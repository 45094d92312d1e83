"""The example of CONTRIBUTING, as a user would run it: a method and a benchmark in a file of their own."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import drcl
from drcl.lab import benchmarks, methods, networks, register, streams
from drcl.lab.data import DataSet, Split, load
from drcl.lab.runs.config import RunConfig
from drcl.lab.runs.execute import execute
from drcl.lab.runs.read import Run, find

PAGE = Path(__file__).parents[2] / "CONTRIBUTING.md"
QUICK = ["-o", "epochs=1", "-o", "tasks=2", "-o", "limit_per_class=20"]


@pytest.fixture(scope="module")
def example() -> str:
    """The one python block of CONTRIBUTING, to the letter."""
    found = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    assert len(found) == 1
    return found[0]


def command(*words: str, folder: Path) -> str:
    """What the command says in a process of its own, which knows nothing of this one."""
    path = os.pathsep.join([str(Path(drcl.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "drcl", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "COLUMNS": "150"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_example_runs_lists_and_goes_on(example, tmp_path):
    (tmp_path / "mine.py").write_text(example)
    told = command("list", "methods", "tether", "--plugin", "mine.py", folder=tmp_path)
    assert "from mine.py" in told
    assert "w <- w - pull (w - a)" in told
    words = ("run", "digits-mirrored", "-m", "tether", "--plugin", "mine.py", "--name", "one", *QUICK)
    assert "tether" in command(*words, folder=tmp_path)
    run = Run.read(tmp_path / "runs" / "one")
    assert run.finished
    assert run.tasks == 2
    assert tomllib.loads((run.path / "config.toml").read_text())["plugins"] == [str(tmp_path / "mine.py")]
    assert run.environment["plugins"] == {"mine.py": {"sha256": hashlib.sha256(example.encode()).hexdigest()}}

    # The run's own config is enough to run it again, from anywhere.
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    command("run", "--config", str(run.path / "config.toml"), "--name", "again", folder=elsewhere)
    again = Run.read(elsewhere / "runs" / "again")
    weights = [(each.path / "model.safetensors").read_bytes() for each in (run, again)]
    assert weights[0] == weights[1]


def test_the_example_in_a_sweep_with_two_processes(example, tmp_path):
    plan = tmp_path / "plan"
    plan.mkdir()
    (plan / "mine.py").write_text(example)  # beside the sweep's file, not where the command runs
    (plan / "sweep.toml").write_text(
        'plugins = ["mine.py"]\nbenchmarks = "digits-mirrored"\nmethods = ["sgd", "tether"]\n'
        "[options]\nepochs = 1\ntasks = 2\nlimit_per_class = 20\n[grid.tether]\npull = [0.0, 1.0]\n"
    )
    command("sweep", "plan/sweep.toml", "--jobs", "2", folder=tmp_path)
    runs = {(run.method, run.options("method_options").get("pull")): run for run in find([tmp_path / "runs"])}
    assert set(runs) == {("sgd", None), ("tether", 0.0), ("tether", 1.0)}
    assert all(run.finished for run in runs.values())
    # No pull is fine-tuning, bit for bit; the whole way back leaves every weight where the first task put it.
    np.testing.assert_array_equal(runs["tether", 0.0].matrix, runs["sgd", None].matrix)
    assert runs["tether", 1.0].value("unmoved") == 1.0
    assert runs["tether", 0.0].value("unmoved") < 1.0


def test_the_mirrored_digits_are_mirrored(example, tmp_path, unregistered):
    (tmp_path / "mine.py").write_text(example)
    RunConfig.make("digits-mirrored", "tether", plugins=[str(tmp_path / "mine.py")])
    first, second, third, fourth = (task.test.images for task in benchmarks.get("digits-mirrored").stream(0))
    assert (second == first[..., ::-1]).all()
    assert (third == first[..., ::-1, :]).all()
    assert (fourth == first[..., ::-1, ::-1]).all()


# ---- all four decorators, in this process


@pytest.mark.usefixtures("unregistered")
def test_a_data_set_and_a_network_of_ones_own_train(tmp_path):
    @register.data("stripes", "upright or lying", classes="2")
    def stripes(root: Path, width: int = 6) -> DataSet:
        upright = torch.zeros(20, 1, width, width, dtype=torch.uint8)
        upright[..., ::2] = 255
        images = torch.cat([upright, upright.transpose(2, 3)]).numpy()
        labels = torch.arange(40).div(20, rounding_mode="floor").numpy()
        return DataSet("stripes", Split(images, labels), Split(images, labels), ("upright", "lying"))

    @register.network("one-layer")
    class OneLayer(nn.Sequential):
        def __init__(self, shape: tuple[int, int, int], width: int = 4, tasks: int = 1) -> None:
            self.out_features = width
            super().__init__(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], width))

    @register.benchmark(
        "stripes-shards", about="stripes dealt out", data="stripes", options={"width": 4}, scenario="domain", tasks=2,
        classes=2, model={"kind": "one-layer", "width": 3}, epochs=1, batch=8, lr=0.1, momentum=0.0,
    )  # fmt: skip
    def halves(data, *, seed, tasks, **parts):
        return streams.shards(data, seed=seed, tasks=tasks, **parts)

    assert load("stripes").train.images.shape == (40, 1, 6, 6)
    result = execute(RunConfig.make("stripes-shards", "sgd"), tmp_path / "run")
    assert result["finished"]
    assert Run.read(tmp_path / "run").options("benchmark_options")["model"] == {"kind": "one-layer", "width": 3}


@pytest.mark.usefixtures("unregistered")
def test_a_builder_that_exists_serves_another_benchmark():
    settings = dict(about="x", data="digits", scenario="task", tasks=2, classes=5, model={"kind": "mlp"}, epochs=1)
    made = register.benchmark(
        "digits-halves", **settings, arguments={"classes_per_task": 5}, batch=8, lr=0.1, momentum=0.0
    )(streams.class_split)
    assert made is streams.class_split
    assert benchmarks.get("digits-halves").builder == "class-split"
    assert [len(task.classes) for task in benchmarks.get("digits-halves").stream(0)] == [5, 5]
    assert "digits-halves" in benchmarks.names()


@pytest.mark.usefixtures("unregistered")
def test_what_makes_no_sense_is_refused_with_the_remedy():
    with pytest.raises(register.PluginError, match="is not a method: decorate a class derived from"):
        register.method(object)
    with pytest.raises(register.PluginError, match="Nameless has no name: write name"):
        register.method(type("Nameless", (methods.Method,), {}))
    with pytest.raises(register.PluginError, match="method name 'a/b': use letters, digits"):
        register.method(type("Slash", (methods.Method,), {"name": "a/b"}))
    with pytest.raises(register.PluginError, match="method 'ewc': drcl has one of that name; give yours another"):
        register.method(type("Mine", (methods.Method,), {"name": "ewc"}))
    with pytest.raises(register.PluginError, match="network 'mlp': drcl has one of that name"):
        register.network("mlp")(nn.Linear)
    with pytest.raises(register.PluginError, match="network 'net' is 3: decorate a class derived from"):
        register.network("net")(3)
    with pytest.raises(register.PluginError, match="data set 'mnist': drcl has one of that name"):
        register.data("mnist", "mine")(lambda root: None)
    with pytest.raises(register.PluginError, match="'clases' is not a fact of a data set: did you mean 'classes'"):
        register.data("set", "mine", clases="3")(lambda root: None)
    with pytest.raises(register.PluginError, match="b': 'epoch' is not a setting of it: did you mean 'epochs'"):
        register.benchmark("b", epoch=1)(lambda data: None)
    with pytest.raises(register.PluginError, match="benchmark 'b' lacks about, data, scenario, tasks, classes, model"):
        register.benchmark("b")(lambda data: None)
    assert methods.get("ewc").__module__.startswith("drcl.")
    assert "net" not in networks.names()


def test_a_plugin_that_changed_is_told_when_a_run_goes_on(example, tmp_path, unregistered):
    file = tmp_path / "mine.py"
    file.write_text(example)
    options = {"epochs": 1, "tasks": 2, "limit_per_class": 20}
    config = RunConfig.make("digits-mirrored", "tether", 0, options, [str(file)])

    def stop(event):
        if event.kind == "task" and event.task == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(config, tmp_path / "run", progress=stop)
    before = json.loads((tmp_path / "run" / "environment.json").read_text())
    file.write_text(example + "\n# another version\n")
    with pytest.warns(RuntimeWarning, match=r"mine.py has changed since this run began"):
        execute(config, tmp_path / "run")
    after = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert before["plugins"] != after["plugins"]
