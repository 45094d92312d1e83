"""A run's directory: killed at any moment it ends as if it had not been, and nobody's work is overwritten."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
from safetensors.torch import load_file

import drcl
from drcl.lab import methods
from drcl.lab.data.errors import MissingData
from drcl.lab.data.lock import locked
from drcl.lab.runs import checkpoint
from drcl.lab.runs.config import RunConfig
from drcl.lab.runs.execute import RunError, execute
from drcl.lab.runs.files import RECORDS
from drcl.lab.runs.read import Run
from drcl.lab.training.events import Event
from drcl.lab.training.learner import Diverged

# Two small tasks of scikit-learn's digits: some seconds for all the methods together.
SMALL = {"tasks": 2, "epochs": 2, "limit_per_class": 16, "batch": 8, "model.hidden": [12], "log_every": 3}
CHEAP = {"samples": 20}


def small(method: str = "sgd", benchmark: str = "digits-split", **more) -> RunConfig:
    known = methods.get(method).__dataclass_fields__
    options = SMALL | {k: v for k, v in CHEAP.items() if k in known} | more
    return RunConfig.make(benchmark, method, 3, options)


def outcome(directory: Path) -> dict[str, bytes]:
    """What must not depend on how often a run was cut."""
    files = ("accuracy.csv", "drift.csv", "model.safetensors", *(f"{name}.csv" for name in RECORDS))
    found = {name: (directory / name).read_bytes() for name in files if (directory / name).exists()}
    per_task = json.loads((directory / "result.json").read_text())["per_task"]
    return found | {"per_task": json.dumps(per_task | {"seconds": None}).encode()}


def curve(directory: Path) -> bytes:
    return (directory / "curve.csv").read_bytes()


@pytest.fixture
def whole(tmp_path):
    def run(config: RunConfig) -> dict[str, bytes]:
        execute(config, tmp_path / "whole")
        return outcome(tmp_path / "whole") | {"curve": curve(tmp_path / "whole")}

    return run


class Cut(Exception):
    """What a kill is made of, where a whole process would be too slow."""


def cut_at(monkeypatch, kill_at: int, config: RunConfig, directory: Path) -> None:
    """Run until the step numbered `kill_at` of the run, and no further."""
    from drcl.lab.training import step as steps

    done = 0
    original = steps.Step.__call__

    def counted(self, batch):
        nonlocal done
        done += 1
        if done == kill_at:
            raise Cut
        original(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(steps.Step, "__call__", counted)
        with pytest.raises(Cut):
            execute(config, directory)


# A process that forks one for each order it reads, runs it, and tells how it ended. Starting Python and torch anew for
# every method would take longer than all the runs.
KILLER = """
import json, os, signal, sys
from pathlib import Path
import sklearn.datasets
import torch
from drcl.lab.training import step as steps
from drcl.lab.runs.config import RunConfig
from drcl.lab.runs.execute import execute
torch.set_num_threads(1)
original = steps.Step.__call__

def run(config, directory, kill_at):
    done = 0
    def counted(self, batch):
        nonlocal done
        done += 1
        if done == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        original(self, batch)
    steps.Step.__call__ = counted
    execute(RunConfig.from_toml(config), Path(directory))

for line in sys.stdin:
    child = os.fork()
    if child == 0:
        run(**json.loads(line))
        os._exit(0)
    print(os.WTERMSIG(os.waitpid(child, 0)[1]), flush=True)
"""


def environment() -> dict[str, str]:
    source = Path(drcl.__file__).parents[1]
    return {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def killed_at():
    arguments = [sys.executable, "-c", KILLER]
    process = subprocess.Popen(arguments, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None

    def run(config: Path, directory: Path, kill_at: int) -> int:
        order = {"config": str(config), "directory": str(directory), "kill_at": kill_at}
        process.stdin.write(json.dumps(order) + "\n")
        process.stdin.flush()
        return int(process.stdout.readline())

    yield run
    process.stdin.close()
    process.wait()
    process.stdout.close()


@pytest.mark.parametrize("method", methods.names())
def test_killed_in_the_middle_of_a_task_it_ends_bit_for_bit(method, whole, killed_at, tmp_path):
    """Step 13 of 16 is in the second task, past the checkpoint at step 10 and its curve points. Where the first task
    has all steps there are 8."""
    joint = method == "joint"
    config = small(method, checkpoint_every=5, **({"batch": 16} if joint else {}))
    (tmp_path / "config.toml").write_text(config.to_toml())
    step = {"joint": 8, "sb-mcl": 7}.get(method, 13)
    assert killed_at(tmp_path / "config.toml", tmp_path / "cut", step) == signal.SIGKILL
    assert not (tmp_path / "cut" / "result.json").exists()
    events: list[Event] = []
    execute(config, tmp_path / "cut", progress=events.append)
    assert events[0].kind == "resume"
    assert outcome(tmp_path / "cut") | {"curve": curve(tmp_path / "cut")} == whole(config)


@pytest.mark.parametrize(
    "options",
    [
        {"importance": "path"},
        {"importance": "kronecker", "labels": "exact", "plasticity_steps": 3},
        {"importance": "mas", "iterations": 2},
        {"splitting": "implicit", "inner_steps": 3},
        {"plasticity_steps": 3, "stable": 0.5},
        {"training.optimizer": "adam"},
        {"benchmark.schedule": "cosine", "model.dropout": 0.5, "splitting": "forward-backward"},
    ],
    ids=lambda options: " ".join(options),
)
def test_every_form_of_drcl_resumes_bit_for_bit(options, whole, tmp_path, monkeypatch):
    config = small("drcl", checkpoint_every=2, **options)
    cut_at(monkeypatch, 14, config, tmp_path / "cut")
    execute(config, tmp_path / "cut")
    assert outcome(tmp_path / "cut") | {"curve": curve(tmp_path / "cut")} == whole(config)


@pytest.mark.parametrize(
    ("benchmark", "options"),
    [
        ("digits-permuted", {}),
        ("digits-split", {"scenario": "class", "training.optimizer": "adamw"}),
        ("digits-split", {"model.norm": "per-task", "model.dropout": 0.3}),
        ("digits-split", {"model.norm": "frozen", "evaluate_unseen": True, "step_norms": True}),
        ("digits-split", {"pixels.crop": 1, "pixels.flip": True, "precision": "bf16", "clip": 0.5}),
    ],
    ids=["permuted", "class", "norm", "frozen", "augmented"],
)
def test_every_kind_of_stream_resumes_bit_for_bit(benchmark, options, whole, tmp_path, monkeypatch):
    config = small("ewc", benchmark, checkpoint_every=1, **options)
    for kill_at in (3, 4, 9):  # of what is left each time
        cut_at(monkeypatch, kill_at, config, tmp_path / "cut")
    execute(config, tmp_path / "cut")
    assert outcome(tmp_path / "cut") | {"curve": curve(tmp_path / "cut")} == whole(config)


def test_killed_before_the_first_checkpoint_it_starts_again(whole, tmp_path, monkeypatch):
    config = small("drcl")
    cut_at(monkeypatch, 6, config, tmp_path / "cut")
    (tmp_path / "cut" / "curve.csv").write_text("task,epoch,step,loss,accuracy\n0,0,3,99.0,\n0,")  # cut in a line
    execute(config, tmp_path / "cut")
    assert outcome(tmp_path / "cut") | {"curve": curve(tmp_path / "cut")} == whole(config)


def test_killed_while_a_task_is_consolidated(whole, tmp_path, monkeypatch):
    from drcl.lab.methods.ewc import EWC

    config = small("ewc", checkpoint_every=5)
    original = EWC.after_task

    def fails(self, task):
        original(self, task)
        raise Cut

    with monkeypatch.context() as patch:
        patch.setattr(EWC, "after_task", fails)
        with pytest.raises(Cut):
            execute(config, tmp_path / "cut")
    execute(config, tmp_path / "cut")
    assert outcome(tmp_path / "cut") == {k: v for k, v in whole(config).items() if k != "curve"}


@pytest.mark.parametrize("file", ["state.json", "tensors.safetensors"])
@pytest.mark.parametrize("harm", ["cut", "flipped", "gone"])
def test_a_damaged_checkpoint_is_reported_and_the_one_before_it_used(file, harm, whole, tmp_path, monkeypatch):
    config = small("drcl", checkpoint_every=2)
    cut_at(monkeypatch, 12, config, tmp_path / "cut")
    found = checkpoint.Checkpoints(tmp_path / "cut" / "checkpoint").numbers()
    assert len(found) == 2
    victim = tmp_path / "cut" / "checkpoint" / f"{found[-1]:08d}" / file
    data = bytearray(victim.read_bytes())
    if harm == "gone":
        victim.unlink()
    elif harm == "cut":
        victim.write_bytes(data[: len(data) // 2])
    else:
        data[-10] ^= 1
        victim.write_bytes(data)
    with pytest.warns(RuntimeWarning, match="is damaged .* the one before it is used"):
        execute(config, tmp_path / "cut")
    assert outcome(tmp_path / "cut") | {"curve": curve(tmp_path / "cut")} == whole(config)


def test_a_full_disk_leaves_the_previous_checkpoint_and_the_run(whole, tmp_path, monkeypatch):
    config = small("drcl", checkpoint_every=2)
    original, calls = checkpoint.write_whole, 0

    def full(path, data):
        nonlocal calls
        if path.name == "tensors.safetensors":
            calls += 1
            if calls > 3:
                path.write_bytes(data[:100])
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        original(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_whole", full)
        with pytest.warns(RuntimeWarning, match="the disk is full.*the one before it is kept"):
            cut_at(patch, 13, config, tmp_path / "cut")
    folder = tmp_path / "cut" / "checkpoint"
    assert checkpoint.Checkpoints(folder).numbers() == [1, 2]
    assert all(path.name.isdigit() for path in folder.iterdir())  # no half-written one is left
    execute(config, tmp_path / "cut")
    assert outcome(tmp_path / "cut") | {"curve": curve(tmp_path / "cut")} == whole(config)


def test_what_a_killed_process_had_begun_is_cleared_away(tmp_path):
    """A draft under its own name, and the checkpoints of a run that was killed right after its result was written."""
    config = small("sgd", checkpoint_every=2)
    directory = tmp_path / "run"
    execute(config, directory)
    (directory / ".model.safetensors-4711").write_bytes(b"half")
    (directory / ".config.toml-1").write_bytes(b"")
    shutil.copytree(directory / "checkpoint" / "00000007", directory / "checkpoint" / "00000008")
    execute(config, directory)
    assert not list(directory.glob(".*-*"))
    assert [p.name for p in (directory / "checkpoint").iterdir()] == ["00000008"]


def test_a_finished_run_is_not_run_again(tmp_path, monkeypatch):
    config = small()
    first = execute(config, tmp_path / "run")
    before = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "run").iterdir() if p.is_file()}
    from drcl.lab.training import learner

    monkeypatch.setattr(learner.Learner, "run", lambda self: pytest.fail("it was run again"))
    assert execute(config, tmp_path / "run") == first == json.loads((tmp_path / "run" / "result.json").read_text())
    assert {p.name: p.stat().st_mtime_ns for p in (tmp_path / "run").iterdir() if p.is_file()} == before


@pytest.mark.parametrize("name", ["model.safetensors", "drift.csv", "curve.csv", "accuracy.csv", "result.json"])
@pytest.mark.parametrize("harm", ["flipped", "gone"])
def test_a_finished_run_with_a_damaged_file_is_run_again_and_says_so(name, harm, tmp_path):
    config = small("drcl")
    execute(config, tmp_path / "run")
    before = outcome(tmp_path / "run") | {"curve": curve(tmp_path / "run")}
    victim = tmp_path / "run" / name
    data = bytearray(victim.read_bytes())
    data[-12] ^= 1
    victim.unlink() if harm == "gone" else victim.write_bytes(data)
    assert not Run.read(tmp_path / "run").finished
    if (name, harm) == ("result.json", "gone"):  # as after a kill just before the end
        execute(config, tmp_path / "run")
    else:
        with pytest.warns(RuntimeWarning, match=f"was finished, but {name} is .*run again"):
            execute(config, tmp_path / "run")
    assert outcome(tmp_path / "run") | {"curve": curve(tmp_path / "run")} == before
    assert Run.read(tmp_path / "run").finished


def test_a_model_is_mended_from_the_checkpoint_without_training(tmp_path, monkeypatch):
    config = small("drcl")
    execute(config, tmp_path / "run")
    before = outcome(tmp_path / "run")
    (tmp_path / "run" / "model.safetensors").write_bytes(b"")
    from drcl.lab.training import step as steps

    monkeypatch.setattr(steps.Step, "__call__", lambda self, batch: pytest.fail("it was trained again"))
    with pytest.warns(RuntimeWarning, match="run again"):
        execute(config, tmp_path / "run")
    assert outcome(tmp_path / "run") == before


@pytest.mark.parametrize("harm", ["flipped", "gone"])
def test_a_run_whose_config_is_not_its_own_is_refused(harm, tmp_path):
    execute(small(), tmp_path / "run")
    path = tmp_path / "run" / "config.toml"
    if harm == "gone":
        path.unlink()
    else:
        path.write_text(path.read_text().replace("seed = 3", "seed = 4"))
    with pytest.raises(RunError, match=r"config.toml is .*put the file back"):
        execute(small(), tmp_path / "run")


def test_killed_between_the_digests_and_the_result_it_is_not_finished(tmp_path, monkeypatch):
    from drcl.lab.runs import digests

    original = digests.replace_whole

    def killed(path, data):
        if path.name == "result.json":
            raise Cut
        original(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(digests, "replace_whole", killed)
        with pytest.raises(Cut):
            execute(small(), tmp_path / "run")
    assert not Run.read(tmp_path / "run").finished
    execute(small(), tmp_path / "run")
    assert Run.read(tmp_path / "run").finished


def test_missing_data_leave_no_folder_behind(tmp_path):
    config = RunConfig.make("mnist-split", "sgd", 0)
    with pytest.raises(MissingData, match="mnist is not in"):
        execute(config, tmp_path / "runs" / "one", data_root=tmp_path / "nothing")
    assert not (tmp_path / "runs").exists()


def test_a_second_process_is_told_and_leaves(tmp_path):
    config = small()
    (tmp_path / "run").mkdir()
    hold = "import sys, time; from pathlib import Path; from drcl.lab.data.lock import locked\n"
    hold += "with locked(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    arguments = [sys.executable, "-c", hold, str(tmp_path / "run" / ".lock")]
    holder = subprocess.Popen(arguments, env=environment(), stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        began = time.monotonic()
        with pytest.raises(RunError, match="another process is running"):
            execute(config, tmp_path / "run")
        assert time.monotonic() - began < 5
    finally:
        holder.kill()
        holder.wait()
        assert holder.stdout is not None
        holder.stdout.close()
    execute(config, tmp_path / "run")  # a killed holder leaves no lock behind
    with locked(tmp_path / "run" / ".lock", patience=0):
        pass


def test_a_directory_of_another_run_is_refused_and_untouched(tmp_path):
    execute(small(), tmp_path / "run")
    before = outcome(tmp_path / "run")
    with pytest.raises(RunError, match=r"holds another run .*benchmark_options.lr: 0.5 / 0.02"):
        execute(small(lr=0.5), tmp_path / "run")
    assert outcome(tmp_path / "run") == before
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="is a file"):
        execute(small(), tmp_path / "file")
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "config.toml").write_text("benchmark = ")
    with pytest.raises(RunError, match="cannot be read"):
        execute(small(), tmp_path / "odd")


def test_how_a_run_is_carried_out_may_change_on_the_way(whole, tmp_path, monkeypatch):
    cut_at(monkeypatch, 12, small("drcl", checkpoint_every=2), tmp_path / "cut")
    execute(small("drcl", checkpoint_every=7, threads=1), tmp_path / "cut")
    assert outcome(tmp_path / "cut") == {k: v for k, v in whole(small("drcl")).items() if k != "curve"}


def test_divergence_is_an_error_with_a_reason(tmp_path):
    config = small("l2", lr=1.0, lam=1e4)  # lr * lam is far above 2
    with pytest.raises(Diverged, match="diverged"):
        execute(config, tmp_path / "run")
    said = json.loads((tmp_path / "run" / "result.json").read_text())
    assert said["finished"] is False
    assert "diverged" in said["error"]
    assert "failed" in Run.read(tmp_path / "run").status


def test_the_directory_is_what_the_reader_expects(tmp_path):
    events: list[Event] = []
    logged: list[tuple[dict[str, float], int]] = []

    class Log:
        closed = False

        def log(self, values, step):
            logged.append((values, step))

        def close(self):
            self.closed = True

    log = Log()
    result = execute(small("drcl"), tmp_path / "run", progress=events.append, loggers=[log])
    run = Run.read(tmp_path / "run")
    assert run.problems == ()
    assert run.finished
    assert (run.benchmark, run.method, run.seed) == ("digits-split", "drcl", 3)
    assert run.tasks == 2
    assert run.value("average_accuracy") == pytest.approx(result["average_accuracy"])
    for key in ("effective_stability", "stiffness", "unmoved", "after_one_epoch_accuracy", "seconds", "state_bytes"):
        assert isinstance(result[key], int | float), key
    assert run.cost["parameters"] == sum(t.numel() for t in load_file(tmp_path / "run" / "model.safetensors").values())
    # trunk 64*12+12: anchor, importance (and z where it is kept) in float32
    assert run.cost["state_bytes"] in (2 * 780 * 4, 3 * 780 * 4)
    # 2 tasks x 2 epochs x 4 batches, and 20 samples in batches of 8 for importance
    assert run.cost["gradient_evaluations"] == 16 + 2 * 3
    assert [d.layer for d in run.drift] == ["fc1", "fc1"]
    assert [d.weights for d in run.drift] == [780, 780]
    assert [(p.task, p.epoch, p.step) for p in run.curve] == [
        (t, (s - 1) // 4, s) for t in (0, 1) for s in (3, 4, 6, 8)
    ]
    assert [e.kind for e in events if e.kind != "step"] == [
        "start",
        *(["task", "epoch", "epoch", "consolidation", "evaluation"] * 2),
        "finish",
    ]
    assert [step for values, step in logged if "loss" in values] == [3, 4, 6, 8, 11, 12, 14, 16]
    assert log.closed
    config = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert config["method_options"]["samples"] == 20
    assert set(config["operation"]) >= {"log_every"}
    assert [p.name for p in (tmp_path / "run" / "checkpoint").iterdir()] == ["00000001"]


def test_the_checkpoint_of_a_finished_run_can_be_left_out(tmp_path):
    execute(small(keep_checkpoint=False), tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoint").exists()
    assert Run.read(tmp_path / "run").finished


def test_joint_has_a_last_row_only(tmp_path):
    result = execute(small("joint"), tmp_path / "run")
    assert (tmp_path / "run" / "accuracy.csv").read_text().splitlines()[0] == "task,0,1"
    assert len((tmp_path / "run" / "accuracy.csv").read_text().splitlines()) == 2
    assert result["backward_transfer"] is None
    assert "not measured" in result["undefined"]["backward_transfer"]
    assert Run.read(tmp_path / "run").finished


def test_the_page_on_the_directory_names_every_file_column_and_field(tmp_path):
    page = (Path(__file__).parents[3] / "docs" / "run-directory.md").read_text(encoding="utf-8")
    execute(small("drcl", splitting="douglas-rachford", iterations=2), tmp_path / "run")
    online = {"tasks": 2, "steps": 6, "batch": 4, "model.hidden": [8], "step_norms": True}
    execute(RunConfig.make("mnist-inputs", "sgd", 0, {"data": "digits", **online}), tmp_path / "online")
    for run in (tmp_path / "run", tmp_path / "online"):
        for path in run.iterdir():
            assert path.name == ".lock" or f"`{path.name}" in page
            if path.suffix == ".csv" and path.stem not in ("accuracy", "changes"):
                columns = path.read_text().splitlines()[0].split(",")
                assert all(f"`{column}`" in page for column in columns)
        result = json.loads((run / "result.json").read_text())
        told = [*result, *result["per_task"], *json.loads((run / "cost.json").read_text())]
        assert [key for key in told if f"`{key}`" not in page and key != "online_accuracy_by_task"] == []
