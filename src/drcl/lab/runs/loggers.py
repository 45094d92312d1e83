"""Send measurements to TensorBoard, MLflow or Weights & Biases. Each package is needed only if you ask for it.

A logger opens its session with the first values it gets, so that looking at a finished run starts no session. A run
that resumes after an interruption continues in the same session.
"""

from __future__ import annotations

import importlib
import json
import math
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from drcl.lab.common.fields import nearest
from drcl.lab.common.tables import flat


class LoggerError(Exception):
    """A logger that does not exist or whose package is not installed."""


class _Logger:
    package = ""
    module = ""

    def __init__(self, directory: Path, settings: Mapping[str, Any]) -> None:
        self.directory, self.settings = Path(directory), settings
        self._session: Any = None
        try:
            self._module = importlib.import_module(self.module)
        except ImportError as missing:
            raise LoggerError(
                f"--log {type(self).__name__.lower()} needs the package {self.package}: pip install {self.package}"
            ) from missing

    @property
    def name(self) -> str:
        return self.directory.name

    def log(self, values: Mapping[str, float], step: int) -> None:
        known = {key: float(value) for key, value in values.items() if value is not None and math.isfinite(value)}
        if not known:
            return
        if self._session is None:
            self._session = self._open()
        self._write(known, step)

    def close(self) -> None:
        if self._session is not None:
            self._close()
            self._session = None

    def identity(self) -> str | None:
        """The session's id from before an interruption."""
        try:
            return json.loads((self.directory / "loggers.json").read_text(encoding="utf-8")).get(self.package)
        except (OSError, ValueError, AttributeError):
            return None

    def remember(self, identity: str) -> None:
        path = self.directory / "loggers.json"
        try:
            known = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            known = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({**known, self.package: identity}, indent=2), encoding="utf-8")

    def _open(self) -> Any:
        raise NotImplementedError

    def _write(self, values: dict[str, float], step: int) -> None:
        raise NotImplementedError

    def _close(self) -> None:
        raise NotImplementedError


class TensorBoard(_Logger):
    """Event files in the run's directory, below ``tensorboard/``."""

    package, module = "tensorboard", "torch.utils.tensorboard"

    def _open(self) -> Any:
        return self._module.SummaryWriter(str(self.directory / "tensorboard"))

    def _write(self, values: dict[str, float], step: int) -> None:
        for key, value in values.items():
            self._session.add_scalar(key, value, step)

    def _close(self) -> None:
        self._session.close()


class MLflow(_Logger):
    """A run of the experiment "drcl" on the configured MLflow tracking server."""

    package, module = "mlflow", "mlflow"

    def _open(self) -> Any:
        known = self.identity()
        self._module.set_experiment("drcl")
        session = self._module.start_run(run_id=known) if known else self._module.start_run(run_name=self.name)
        if not known:
            self.remember(session.info.run_id)
            self._module.log_params(flat(self.settings))
        return session

    def _write(self, values: dict[str, float], step: int) -> None:
        self._module.log_metrics(values, step=step)

    def _close(self) -> None:
        self._module.end_run()


class WandB(_Logger):
    """A run of the project "drcl"."""

    package, module = "wandb", "wandb"

    def _open(self) -> Any:
        known = self.identity() or uuid.uuid4().hex[:12]
        self.remember(known)
        return self._module.init(
            project="drcl",
            name=self.name,
            id=known,
            resume="allow",
            dir=str(self.directory),
            config=dict(self.settings),
        )

    def _write(self, values: dict[str, float], step: int) -> None:
        self._session.log(values, step=step)

    def _close(self) -> None:
        self._session.finish()


LOGGERS: dict[str, type[_Logger]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}


def make(names: Iterable[str], directory: str | Path, settings: Mapping[str, Any]) -> list[_Logger]:
    """The loggers called `names` for the run in `directory`; `settings` is its resolved configuration."""
    made = []
    for name in dict.fromkeys(names):
        if name not in LOGGERS:
            raise LoggerError(f"--log {name} is unknown: {nearest(name, tuple(LOGGERS))}")
        made.append(LOGGERS[name](Path(directory), settings))
    return made
