"""One process at a time: a lock on a file, which the system releases even when its holder is killed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from drcl.lab.data.errors import DataError

try:
    import fcntl

    def _try(file: IO[bytes]) -> None:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _release(file: IO[bytes]) -> None:
        fcntl.flock(file.fileno(), fcntl.LOCK_UN)

except ModuleNotFoundError:  # Windows
    import msvcrt

    def _try(file: IO[bytes]) -> None:
        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]

    def _release(file: IO[bytes]) -> None:
        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)  # type: ignore[attr-defined]


@contextmanager
def locked(path: Path, patience: float = 3600.0) -> Iterator[None]:
    """Hold ``path`` as a lock; wait up to ``patience`` seconds for whoever has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + patience
    with path.open("ab") as file:  # left in place: removing a lock file would let two holders in
        while True:
            try:
                _try(file)
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise DataError(
                        f"another process (not {os.getpid()}) has held {path} for {patience:g} s; "
                        "wait for it or end it."
                    ) from None
                time.sleep(0.05)
        try:
            yield
        finally:
            _release(file)
