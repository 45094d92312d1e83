"""Loggers: TensorBoard for real, the other two as stand-ins that write down what they are told."""

from __future__ import annotations

import json
import math
import sys
import types

import pytest

from drcl.lab.runs import loggers

SETTINGS = {"benchmark": "digits-permuted", "method_options": {"lam": 3.0, "deep": {"er": 1}}}


def test_tensorboard_writes_every_scalar(tmp_path):
    (logger,) = loggers.make(["tensorboard"], tmp_path / "run", SETTINGS)
    logger.log({"loss": 2.5, "accuracy": 0.25}, 1)
    logger.log({"loss": 1.5}, 2)
    logger.close()
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    assert [(e.step, e.value) for e in read.Scalars("loss")] == [(1, 2.5), (2, 1.5)]
    assert [(e.step, e.value) for e in read.Scalars("accuracy")] == [(1, 0.25)]


def test_nothing_is_opened_before_there_is_something_to_log(tmp_path):
    (logger,) = loggers.make(["tensorboard"], tmp_path / "run", SETTINGS)
    logger.log({"loss": math.nan}, 1)
    logger.close()
    assert not (tmp_path / "run").exists()


@pytest.fixture
def mlflow(monkeypatch):
    said: list[tuple] = []
    fake = types.ModuleType("mlflow")
    info = types.SimpleNamespace(info=types.SimpleNamespace(run_id="abc"))
    fake.set_experiment = lambda name: said.append(("experiment", name))
    fake.start_run = lambda **given: said.append(("start", given)) or info
    fake.log_params = lambda values: said.append(("params", values))
    fake.log_metrics = lambda values, step: said.append(("metrics", values, step))
    fake.end_run = lambda: said.append(("end",))
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    return said


def test_mlflow_gets_parameters_once_and_goes_on_in_the_same_run(tmp_path, mlflow):
    directory = tmp_path / "one"
    (logger,) = loggers.make(["mlflow"], directory, SETTINGS)
    logger.log({"loss": 1.0, "bad": math.inf}, 5)
    logger.close()
    assert mlflow == [
        ("experiment", "drcl"),
        ("start", {"run_name": "one"}),
        ("params", {"benchmark": "digits-permuted", "method_options.lam": 3.0, "method_options.deep.er": 1}),
        ("metrics", {"loss": 1.0}, 5),
        ("end",),
    ]
    mlflow.clear()
    (logger,) = loggers.make(["mlflow"], directory, SETTINGS)
    logger.log({"loss": 0.5}, 6)
    assert mlflow == [("experiment", "drcl"), ("start", {"run_id": "abc"}), ("metrics", {"loss": 0.5}, 6)]


def test_wandb_keeps_its_id_over_an_interruption(tmp_path, monkeypatch):
    said: list[tuple] = []
    run = types.SimpleNamespace(
        log=lambda values, step: said.append(("log", values, step)), finish=lambda: said.append(("finish",))
    )
    fake = types.ModuleType("wandb")
    fake.init = lambda **given: said.append(("init", given)) or run
    monkeypatch.setitem(sys.modules, "wandb", fake)
    for _ in range(2):
        (logger,) = loggers.make(["wandb"], tmp_path / "one", SETTINGS)
        logger.log({"loss": 1.0}, 5)
        logger.close()
    first, second = (entry[1] for entry in said if entry[0] == "init")
    assert first == second
    assert (first["project"], first["name"], first["resume"], first["config"]) == ("drcl", "one", "allow", SETTINGS)
    assert json.loads((tmp_path / "one" / "loggers.json").read_text()) == {"wandb": first["id"]}
    assert said[1:3] == [("log", {"loss": 1.0}, 5), ("finish",)]


@pytest.mark.parametrize(("name", "module"), [("mlflow", "mlflow"), ("wandb", "wandb"), ("tensorboard", "tensorboard")])
def test_an_absent_package_says_how_to_get_it(tmp_path, monkeypatch, name, module):
    for loaded in [key for key in sys.modules if key.startswith(("tensorboard", "torch.utils.tensorboard"))]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(loggers.LoggerError, match=f"pip install {name}"):
        loggers.make([name], tmp_path, SETTINGS)


def test_an_unknown_logger_is_refused_with_the_nearest_name(tmp_path):
    with pytest.raises(loggers.LoggerError, match="did you mean 'tensorboard'"):
        loggers.make(["tensorbord"], tmp_path, SETTINGS)
