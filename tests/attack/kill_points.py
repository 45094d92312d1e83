"""Places at which a process is killed: before and after everything that changes the disk, and at the hooks of a run.

A kill leaves what was written in the system's memory, so it is also made worse: ``torn`` cuts what has not been waited
for off the file that is just being waited for, as a power cut may.
"""

from __future__ import annotations

import functools
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

WAYS = ("before", "after", "torn")


class Points:
    """Counts the places that are passed, and kills this process at one of them."""

    def __init__(self, folder: Path, kill_at: int | None, way: str, seed: int = 0) -> None:
        self.folder, self.kill_at, self.way = os.path.realpath(folder), kill_at, way
        self.rng = random.Random(seed)
        self.names: list[str] = []
        self.synced = {p.stat().st_ino: p.stat().st_size for p in folder.rglob("*") if p.is_file()}

    def passing(self, name: str, act: Callable[[], Any], tear: Callable[[], None] | None = None) -> Any:
        chosen = len(self.names) == self.kill_at
        self.names.append(name)
        if chosen and self.way != "after":
            if self.way == "torn" and tear is not None:
                tear()
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            return act()
        finally:  # also where there was nothing to do: the folder was there, or no file
            if chosen:
                os.kill(os.getpid(), signal.SIGKILL)

    # ---- the disk

    def watch_disk(self) -> None:
        """From now on every call that changes the folder is a place."""
        for name in ("rename", "replace", "unlink", "remove", "rmdir", "mkdir", "truncate"):
            setattr(os, name, self._counted(name, getattr(os, name)))
        wait = os.fsync

        def fsync(handle: int) -> None:
            path = os.readlink(f"/proc/self/fd/{handle}")
            if not self._inside(path):
                return wait(handle)
            self.passing(f"fsync {self._short(path)}", lambda: wait(handle), functools.partial(self._tear, path))
            self.synced[os.stat(path).st_ino] = os.stat(path).st_size

        os.fsync = fsync

    def _counted(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(path: Any, *arguments: Any, **options: Any) -> Any:
            place = options.get("dir_fd")
            whole = os.fspath(path) if isinstance(path, str | os.PathLike) else f"handle {path}"
            if place is not None:
                whole = os.path.join(os.readlink(f"/proc/self/fd/{place}"), whole)
            if not self._inside(whole):
                return original(path, *arguments, **options)
            return self.passing(f"{name} {self._short(whole)}", lambda: original(path, *arguments, **options))

        return call

    def _inside(self, path: str) -> bool:
        return os.path.realpath(os.path.dirname(path)).startswith(self.folder)

    def _short(self, path: str) -> str:
        return os.path.relpath(os.path.realpath(os.path.dirname(path)), self.folder) + "/" + os.path.basename(path)

    def _tear(self, path: str) -> None:
        if os.path.isfile(path):
            kept, size = self.synced.get(os.stat(path).st_ino, 0), os.stat(path).st_size
            with open(path, "rb+") as file:
                file.truncate(self.rng.randint(min(kept, size), size))

    # ---- hooks

    def watch(self, owner: Any, *names: str, counts: Callable[..., bool] = lambda *arguments: True) -> None:
        """From now on every call of these methods of a class is a place."""
        for name in names:
            original = getattr(owner, name)

            def call(this: Any, *arguments: Any, original: Any = original, name: str = name, **options: Any) -> Any:
                if not counts(this, *arguments):
                    return original(this, *arguments, **options)
                return self.passing(f"hook {name}", lambda: original(this, *arguments, **options))

            setattr(owner, name, call)
