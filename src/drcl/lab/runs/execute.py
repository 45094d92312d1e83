"""A run's directory, from an empty one to ``result.json``: begin, resume, or find it finished.

config.toml        what was run, every default written out
environment.json   where
accuracy.csv       the matrix, a row after each task
drift.csv          what each task moved, layer by layer
curve.csv          loss while training
losses.csv         loss of the first and the newest task on some test images
steps.csv          some training steps: length, what was proposed and let through, residual
iterations.csv     residual by iteration, where a step has several
updates.csv        updates of some single weights, proposed and let through
changes.csv        histogram of |change| by task and layer
cost.json          seconds and peak memory by phase, gradient evaluations, state bytes
model.safetensors  the final weights
digests.json       a digest of every other file
result.json        the measures, the matrix, and whether it finished; written last of all
checkpoint/        where it goes on after a kill
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from safetensors.torch import save as save_tensors

from drcl.lab.common import memory, parallel, plugins
from drcl.lab.common.words import reason
from drcl.lab.data.errors import DataError
from drcl.lab.data.lock import locked
from drcl.lab.networks import count_parameters
from drcl.lab.runs import digests, environment, metrics
from drcl.lab.runs.checkpoint import Checkpoints, clear_drafts, replace_whole
from drcl.lab.runs.config import RunConfig
from drcl.lab.runs.digests import Seal
from drcl.lab.runs.read import MARKS, Run
from drcl.lab.runs.write import Records
from drcl.lab.streams import Stream
from drcl.lab.training.budget import Plan
from drcl.lab.training.diary import DRIFTS
from drcl.lab.training.events import Event, Kind, Logger
from drcl.lab.training.learner import Learner
from drcl.lab.training.settings import Training
from drcl.lab.training.surroundings import pick_device

__all__ = ["Event", "Logger", "RunError", "execute"]


class RunError(RuntimeError):
    """A run that cannot continue, and what to do about it."""


def execute(
    config: RunConfig,
    directory: Path | str,
    *,
    progress: Callable[[Event], None] | None = None,
    loggers: Sequence[Logger] = (),
    data_root: Path | str | None = None,
) -> dict[str, Any]:
    """Run `config` in `directory`, or continue where it stopped. Returns the content of ``result.json``.

    Raises ``RunError`` if the directory belongs to another run or another process is working on it. An error that stops
    the training is raised too, and noted in ``result.json``. The same call again continues from the last checkpoint.
    """
    directory = Path(directory)
    memory.keep()
    for plugin in config.plugins:  # a config from another process has only their names
        plugins.load(plugin)
    training = config.make_training()
    device = pick_device(training.device)
    here = parallel.join(device)
    # Report missing or damaged data before anything is written.
    stream = None if directory.exists() else _stream(config, data_root)
    with ExitStack() as stack:
        for logger in loggers:
            stack.callback(logger.close)
        if here.rank == 0:
            _make(directory)
            stack.enter_context(_alone(directory))
            _claim(config, directory)
            clear_drafts(directory)
        parallel.wait()
        there = Run.read(directory)
        if there.finished:
            if here.rank == 0:
                _tidy(directory, training)  # the run may have been killed between writing the result and this
            return there.result
        parallel.wait()  # all processes must read it before one changes it
        stream = stream or _stream(config, data_root)
        seal = Seal(directory)
        if here.rank == 0:
            if there.broken:
                _say(f"{directory} was finished, but {'; '.join(there.broken)}; it is run again")
            digests.remove(directory)
            seal.write("config.toml", config.to_toml().encode())
        learner, records = _prepare(config, stream, seal, progress, loggers)
        with _failure_noted(directory, here.rank == 0):
            learner.run()
        result = _conclude(learner)
        if here.rank == 0:
            records.checkpoints.keep_last()  # before the result, because a run with a result is not resumed
            _write(seal, learner, records, result)
            _tidy(directory, training)
        parallel.wait()
        return result


def _tidy(directory: Path, training: Training) -> None:
    """Keep only the last checkpoint of a finished run, or none."""
    kept = Checkpoints(directory / "checkpoint")
    kept.keep_last()
    if not training.keep_checkpoint:
        kept.keep_none()


def _stream(config: RunConfig, data_root: Path | str | None) -> Stream:
    return config.make_benchmark().stream(seed=config.seed, data_root=data_root, **config.stream_options())


def _make(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise RunError(f"{directory} is a file; choose another directory for this run") from None


def _claim(config: RunConfig, directory: Path) -> None:
    """Check that the directory is empty or belongs to this run."""
    path = directory / "config.toml"
    if not path.exists():
        left = [name for name in (*MARKS, "checkpoint") if (directory / name).exists()]
        if left:
            raise RunError(
                f"{directory} holds {left[0]} of a run whose config.toml is missing, so it is not known what was run; "
                "move it away, or put the file back"
            )
        return
    for sentence in digests.check(directory):
        if sentence.startswith(path.name):
            raise RunError(f"{directory}: {sentence}; move the directory away, or put the file back")
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
    stream: Stream,
    seal: Seal,
    progress: Callable[[Event], None] | None,
    loggers: Sequence[Logger],
) -> tuple[Learner, Records]:
    """Network, method and files, at the beginning or where the last checkpoint left them."""
    directory, benchmark, training = seal.directory, config.make_benchmark(), config.make_training()
    records = Records(directory, len(stream), progress, loggers, _say)
    method = config.make_method()
    plan = Plan.of(benchmark)
    network = benchmark.network(stream, seed=config.seed)
    learner = Learner(stream, network, method, plan, training, seed=config.seed, watcher=records)
    # One process reads and repairs the files, then the others read them.
    state = records.load(learner.device) if records.writes else None
    parallel.wait()
    state = state if records.writes else records.load(learner.device)
    if records.writes:
        described = environment.describe(learner.device, config.plugins)
        if state is not None:
            for name in environment.changed_plugins(_json(directory / "environment.json"), described):
                _say(f"{name} has changed since this run began; what follows is computed with its new version")
        seal.write("environment.json", json.dumps(described, indent=2).encode())
    if state is not None:
        learner.load_state_dict(state)
    kind: Kind = "start" if state is None else "resume"
    records.event(Event(kind, learner.at.task, len(stream), step=learner.at.step, seconds=learner.cost.total()))
    return learner, records


def _conclude(learner: Learner) -> dict[str, Any]:
    """The content of ``result.json``."""
    drifts, once = learner.drifts, learner.after_one_epoch
    alone = "only one task was trained, so there were no earlier weights to keep"

    def mean(key: str) -> float:
        return sum(d[key] for d in drifts) / len(drifts) if drifts else metrics.Undefined(alone)

    per_task = _per_task(learner)
    online: dict[str, float] = {}
    if learner.online:
        online["online_accuracy"] = sum(learner.online) / len(learner.online)
        online["online_forgetting"] = metrics.online_forgetting(learner.online)
        online["online_plasticity"] = _plasticity([pair for task in learner.diary.step_losses for pair in task])
    if learner.step_norms:
        online["step_stiffness"] = metrics.step_stiffness(learner.step_norms)
    summary = metrics.summary(
        learner.matrix,
        learner.untrained,
        **{key: mean(key) for key in DRIFTS},
        **{key: _over_tasks(per_task[key]) for key in ("residual", "iterations")},
        after_one_epoch_accuracy=metrics.after_one_epoch_accuracy(once),
        **online,
        seconds=learner.cost.total(),
        state_bytes=learner.cost.state_bytes,
    )
    grid = [[None if math.isnan(v) else v for v in row] for row in learner.matrix]
    extra = {"online_accuracy_by_task": learner.online} if learner.online else {}
    told = {key: [None if math.isnan(v) else v for v in values] for key, values in per_task.items()}
    return summary.as_json() | extra | {"per_task": told, "accuracy_matrix": grid, "finished": True}


def _per_task(learner: Learner) -> dict[str, list[float]]:
    """One value per task under each name: what ``result.json`` keeps beside the matrix."""
    found = {"after_one_epoch_accuracy": learner.after_one_epoch} | learner.diary.values
    if learner.online:
        found["online_accuracy"] = [math.nan] * (len(learner.stream) - len(learner.online)) + learner.online
        found["online_plasticity"] = [_plasticity(pairs) for pairs in learner.diary.step_losses]
    return found


def _over_tasks(values: Sequence[float]) -> float:
    """The mean over tasks with a value."""
    known = [v for v in values if not math.isnan(v)]
    return sum(known) / len(known) if known else metrics.Undefined("no step was split into two operators")


def _plasticity(pairs: Sequence[tuple[float, float]]) -> float:
    return metrics.online_plasticity([before for before, _ in pairs], [after for _, after in pairs])


def _write(seal: Seal, learner: Learner, records: Records, result: dict[str, Any]) -> None:
    """The last files, ``result.json`` last of all: it says that the others are there."""
    cost = learner.cost.as_json(count_parameters(learner.model))
    weights = {name: t.detach().cpu().contiguous() for name, t in learner.model.state_dict().items()}
    seal.write("model.safetensors", save_tensors(weights))
    seal.write("cost.json", json.dumps(cost, indent=2).encode())
    seal.digests |= {table.path.name: table.digest for table in records.tables.values() if table.path.exists()}
    seal.close(json.dumps(result, indent=2, allow_nan=False).encode())


@contextmanager
def _failure_noted(directory: Path, writes: bool) -> Iterator[None]:
    """Write down the reason, for lists of runs. The run can still continue from its last checkpoint."""
    try:
        yield
    except Exception as error:
        if writes:
            note = {"finished": False, "error": reason(error)}
            with suppress(OSError):  # a full disk may be the reason for the failure
                replace_whole(directory / "result.json", json.dumps(note, indent=2).encode())
        raise


def _json(path: Path) -> dict[str, Any]:
    """A table from a file; nothing if there is none, or no table in it."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _say(sentence: str) -> None:
    warnings.warn(sentence, RuntimeWarning, stacklevel=2)
