"""A run's directory, from an empty one to ``result.json``: begin, resume, or find it finished.

config.toml        what was run, every default written out
environment.json   where
accuracy.csv       the matrix, a row after each task
drift.csv          what each task moved, layer by layer
curve.csv          loss while training
cost.json          seconds and peak memory by phase, gradient evaluations, state bytes
result.json        the measures, the matrix, and whether it finished
model.safetensors  the final weights
checkpoint/        where it goes on after a kill
"""

from __future__ import annotations

import json
import math
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from safetensors.torch import save as save_tensors

from drcl.lab.common import parallel, plugins
from drcl.lab.common.words import reason
from drcl.lab.data.errors import DataError
from drcl.lab.data.lock import locked
from drcl.lab.networks import count_parameters
from drcl.lab.runs import environment, metrics
from drcl.lab.runs.checkpoint import replace_whole
from drcl.lab.runs.config import RunConfig
from drcl.lab.runs.write import Records
from drcl.lab.training.budget import Plan
from drcl.lab.training.events import Event, Kind, Logger
from drcl.lab.training.learner import Learner
from drcl.lab.training.surroundings import pick_device

__all__ = ["Event", "Logger", "RunError", "execute"]


class RunError(RuntimeError):
    """A run that cannot go on, and what to do about it."""


def execute(
    config: RunConfig,
    directory: Path | str,
    *,
    progress: Callable[[Event], None] | None = None,
    loggers: Sequence[Logger] = (),
    data_root: Path | str | None = None,
) -> dict[str, Any]:
    """Run `config` in `directory`, or go on where it stopped; the content of ``result.json`` either way.

    Raises ``RunError`` where the directory belongs to another run or another process is at it, and whatever stopped the
    training, which is then also noted in ``result.json``. The same call again goes on from the last checkpoint.
    """
    directory = Path(directory)
    for plugin in config.plugins:  # a config that came from another process brings their names only
        plugins.load(plugin)
    training = config.make_training()
    device = pick_device(training.device)
    here = parallel.join(device)
    with ExitStack() as stack:
        for logger in loggers:
            stack.callback(logger.close)
        if here.rank == 0:
            _make(directory)
            stack.enter_context(_alone(directory))
            _claim(config, directory)
        parallel.wait()
        finished = _json(directory / "result.json")
        if finished.get("finished") is True:
            return finished
        if here.rank == 0:
            replace_whole(directory / "config.toml", config.to_toml().encode())
        learner, records = _prepare(config, directory, progress, loggers, data_root)
        with _failure_noted(directory, here.rank == 0):
            learner.run()
        result = _conclude(learner)
        if here.rank == 0:
            _write(directory, learner, result)
            records.checkpoints.keep_last()
            if not training.keep_checkpoint:
                shutil.rmtree(directory / "checkpoint", ignore_errors=True)
        parallel.wait()
        return result


def _make(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise RunError(f"{directory} is a file; choose another directory for this run") from None


def _claim(config: RunConfig, directory: Path) -> None:
    """See that the directory is empty or this run's own."""
    path = directory / "config.toml"
    if not path.exists():
        return
    try:
        other = RunConfig.from_toml(path)
    except ValueError as error:
        raise RunError(f"{directory} holds a run whose config cannot be read ({error}); move it away") from None
    if other.key() != config.key():
        differs = "; ".join(config.differences(other)[:5])
        raise RunError(
            f"{directory} holds another run (asked for / there: {differs}); "
            "choose another directory, or remove that one"
        )


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(directory / ".lock", patience=0))
        except DataError:
            raise RunError(f"another process is running {directory}; wait for it, or end it first") from None
        yield


def _prepare(
    config: RunConfig,
    directory: Path,
    progress: Callable[[Event], None] | None,
    loggers: Sequence[Logger],
    data_root: Path | str | None,
) -> tuple[Learner, Records]:
    """Stream, network, method and files, at the beginning or where the last checkpoint left them."""
    benchmark, training = config.make_benchmark(), config.make_training()
    stream = benchmark.stream(seed=config.seed, data_root=data_root, **config.stream_options())
    records = Records(directory, len(stream), progress, loggers, _say)
    method = config.make_method()
    plan = Plan.of(benchmark)
    network = benchmark.network(stream, seed=config.seed)
    learner = Learner(stream, network, method, plan, training, seed=config.seed, watcher=records)
    # One process reads and puts the files right, then the others read the same.
    state = records.load(learner.device) if records.writes else None
    parallel.wait()
    state = state if records.writes else records.load(learner.device)
    if records.writes:
        described = environment.describe(learner.device, config.plugins)
        if state is not None:
            for name in environment.changed_plugins(_json(directory / "environment.json"), described):
                _say(f"{name} has changed since this run began; what follows is computed with its new version")
        replace_whole(directory / "environment.json", json.dumps(described, indent=2).encode())
        (directory / "result.json").unlink(missing_ok=True)  # the note of an earlier failure
    if state is not None:
        learner.load_state_dict(state)
    kind: Kind = "start" if state is None else "resume"
    records.event(Event(kind, learner.at.task, len(stream), step=learner.at.step, seconds=learner.cost.total()))
    return learner, records


def _conclude(learner: Learner) -> dict[str, Any]:
    """The content of ``result.json``."""
    drifts, once = learner.drifts, learner.after_one_epoch
    alone = "there is one trained task only, so there were no earlier weights to keep"

    def mean(key: str) -> float:
        return sum(d[key] for d in drifts) / len(drifts) if drifts else metrics.Undefined(alone)

    keys = ("effective_stability", "effective_stability_0.001", "unmoved", "stiffness")
    online: dict[str, float] = {}
    if learner.online:
        online["online_accuracy"] = sum(learner.online) / len(learner.online)
        online["online_forgetting"] = metrics.online_forgetting(learner.online)
    if learner.step_norms:
        online["step_stiffness"] = metrics.step_stiffness(learner.step_norms)
    summary = metrics.summary(
        learner.matrix,
        learner.untrained,
        **{key: mean(key) for key in keys},
        after_one_epoch_accuracy=metrics.after_one_epoch_accuracy(once),
        **online,
        seconds=learner.cost.total(),
        state_bytes=learner.cost.state_bytes,
    )
    grid = [[None if math.isnan(v) else v for v in row] for row in learner.matrix]
    extra = {"online_accuracy_by_task": learner.online} if learner.online else {}
    return summary.as_json() | extra | {"accuracy_matrix": grid, "finished": True}


def _write(directory: Path, learner: Learner, result: dict[str, Any]) -> None:
    """The last files, ``result.json`` last of all: it says that the others are there."""
    cost = learner.cost.as_json(count_parameters(learner.model))
    weights = {name: t.detach().cpu().contiguous() for name, t in learner.model.state_dict().items()}
    replace_whole(directory / "model.safetensors", save_tensors(weights))
    replace_whole(directory / "cost.json", json.dumps(cost, indent=2).encode())
    replace_whole(directory / "result.json", json.dumps(result, indent=2, allow_nan=False).encode())


@contextmanager
def _failure_noted(directory: Path, writes: bool) -> Iterator[None]:
    """A reason beside the files, for lists of runs; the run can still go on from its last checkpoint."""
    try:
        yield
    except Exception as error:
        if writes:
            note = {"finished": False, "error": reason(error)}
            with suppress(OSError):  # a full disk may be the very reason
                replace_whole(directory / "result.json", json.dumps(note, indent=2).encode())
        raise


def _json(path: Path) -> dict[str, Any]:
    """A table from a file; nothing if there is none, or no table in it."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _say(sentence: str) -> None:
    warnings.warn(sentence, RuntimeWarning, stacklevel=2)
