"""Checkpoints of a run: written whole or not at all, checked before they are trusted, never unpickled.

``checkpoint/00000042/`` holds ``tensors.safetensors`` and ``state.json`` with a digest over both. A new checkpoint is
written beside the others and then renamed. The one before it is kept until the next, in case the newest is damaged.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from drcl.lab.runs import nested

FORMAT = "drcl.checkpoint/1"
KEPT = 2


class CheckpointError(ValueError):
    """A checkpoint that cannot be trusted, and why."""


class Checkpoints:
    """The checkpoints in one folder. `tell` gets a sentence whenever something is wrong."""

    def __init__(self, folder: Path, tell: Callable[[str], None] = lambda sentence: None) -> None:
        self.folder, self.tell = folder, tell

    def numbers(self) -> list[int]:
        """The existing checkpoints, oldest first; half-written ones have other names."""
        if not self.folder.is_dir():
            return []
        return sorted(int(p.name) for p in self.folder.iterdir() if p.name.isdigit() and p.is_dir())

    def save(self, state: dict[str, Any]) -> bool:
        """Write a new checkpoint. If the disk cannot store it, say so and return False; the old ones stay."""
        found = self.numbers()
        number = found[-1] + 1 if found else 0
        text, tensors = nested.pack(state)
        draft = self.folder / f"new-{os.getpid()}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._clear()
            draft.mkdir()
            data = save_tensors(tensors)
            body = json.dumps(text, allow_nan=False)
            head = {"format": FORMAT, "digest": _digest(data, body)}
            write_whole(draft / "tensors.safetensors", data)
            write_whole(draft / "state.json", f'{{"head": {json.dumps(head)},\n"state": {body}}}\n'.encode())
            flush_folder(draft)
            draft.rename(self.folder / f"{number:08d}")
            flush_folder(self.folder)
        except OSError as error:
            shutil.rmtree(draft, ignore_errors=True)
            why = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else str(error)
            kept = "the one before it is kept" if found else "there is none yet"
            self.tell(f"a checkpoint could not be written to {self.folder} ({why}); the run continues and {kept}")
            return False
        for old in found[: len(found) - KEPT + 1]:
            self._remove(old)
        return True

    def load(
        self, device: torch.device | str = "cpu", unfit: Callable[[dict[str, Any]], str] = lambda state: ""
    ) -> dict[str, Any] | None:
        """The newest intact checkpoint, or None; damaged ones are reported and removed. `unfit` returns the reason why
        an intact one cannot be used either, or nothing."""
        found = self.numbers()
        for place, number in reversed(list(enumerate(found))):
            path = self.folder / f"{number:08d}"
            then = "the one before it is used" if place else "there is no other, so the run starts again"
            try:
                state = self.read(number, device)
            except CheckpointError as error:
                self.tell(f"the checkpoint {path} is damaged ({error}); {then}")
            else:
                why = unfit(state)
                if not why:
                    return state
                self.tell(f"{why}, so the checkpoint {path} cannot be used; {then}")
            self._remove(number)
        return None

    def read(self, number: int, device: torch.device | str = "cpu") -> dict[str, Any]:
        """The state in one checkpoint, which is not changed; `CheckpointError` says what is wrong with it."""
        try:
            return self._read(self.folder / f"{number:08d}", device)
        except (OSError, ValueError, KeyError, TypeError, RecursionError, SafetensorError) as error:
            raise CheckpointError(str(error) or type(error).__name__) from None

    def keep_last(self) -> None:
        """Leave only the newest one, when the run is finished."""
        for number in self.numbers()[:-1]:
            self._remove(number)
        self._clear()

    def keep_none(self) -> None:
        """Remove them all and their folder."""
        for number in self.numbers():
            self._remove(number)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _read(self, path: Path, device: torch.device | str) -> dict[str, Any]:
        content = json.loads((path / "state.json").read_text(encoding="utf-8"))
        data = (path / "tensors.safetensors").read_bytes()
        if content["head"]["format"] != FORMAT:
            raise ValueError(f"it has the format {content['head']['format']!r}, not {FORMAT!r}")
        if content["head"]["digest"] != _digest(data, json.dumps(content["state"], allow_nan=False)):
            raise ValueError("its content does not match its digest")
        state = nested.unpack(content["state"], load_tensors(data), device)
        if not isinstance(state, dict):
            raise ValueError("it does not hold a table")
        return state

    def _remove(self, number: int) -> None:
        """Rename it first, so that a kill cannot leave half a checkpoint that looks damaged."""
        aside = self.folder / f"old-{number:08d}"
        shutil.rmtree(aside, ignore_errors=True)
        with suppress(OSError):
            (self.folder / f"{number:08d}").rename(aside)
        shutil.rmtree(aside, ignore_errors=True)

    def _clear(self) -> None:
        """Remove what a killed process had begun to write or to remove."""
        for path in self.folder.iterdir() if self.folder.is_dir() else ():
            if path.name.startswith(("new-", "old-")):
                shutil.rmtree(path, ignore_errors=True)


def _digest(data: bytes, body: str) -> str:
    found = hashlib.sha256(data)
    found.update(body.encode())
    return found.hexdigest()


def write_whole(path: Path, data: bytes) -> None:
    """Write and wait until the disk has it."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace_whole(path: Path, data: bytes) -> None:
    """Replace a file in one piece: a reader sees either the old content or the new, never half of one."""
    draft = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        write_whole(draft, data)
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    flush_folder(path.parent)


def clear_drafts(folder: Path) -> None:
    """Remove what `replace_whole` had begun when its process was killed; call it where no other process writes."""
    for path in folder.glob(".*-*"):
        if path.name.rpartition("-")[2].isdigit() and path.is_file():
            path.unlink(missing_ok=True)


def flush_folder(path: Path) -> None:
    """Make a rename inside `path` survive a power cut, if the system supports it."""
    if os.name == "nt":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
