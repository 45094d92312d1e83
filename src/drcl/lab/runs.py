"""A run's directory, from an empty one to ``result.json``: begin, resume, or find it finished."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from drcl.lab.config import RunConfig
from drcl.lab.events import Event, Logger

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
    """Run `config` in `directory`, or go on where it stopped; the content of ``result.json`` either way."""
    raise RunError("this run cannot be carried out yet")
