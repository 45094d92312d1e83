"""Checkpoints of a run: written whole or not at all, checked before they are trusted, never unpickled.

``checkpoint/00000042/`` holds ``tensors.safetensors`` and ``state.json`` with a digest over both. A new one is written
beside the others and renamed; the one before it is kept until the next, in case the disk has damaged the newest.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from drcl.lab.runs import nested

FORMAT = "drcl.checkpoint/1"
KEPT = 2


class Checkpoints:
    """The checkpoints in one folder. `tell` gets a sentence whenever something is not as it should be."""

    def __init__(self, folder: Path, tell: Callable[[str], None] = lambda sentence: None) -> None:
        self.folder, self.tell = folder, tell

    def numbers(self) -> list[int]:
        """Those there are, oldest first; half-written ones have other names."""
        if not self.folder.is_dir():
            return []
        return sorted(int(p.name) for p in self.folder.iterdir() if p.name.isdigit() and p.is_dir())

    def save(self, state: dict[str, Any]) -> bool:
        """Write a new one; False, with a word about it, where the disk does not take it: the old ones stay."""
        found = self.numbers()
        number = found[-1] + 1 if found else 0
        text, tensors = nested.pack(state)
        draft = self.folder / f"new-{os.getpid()}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._clear(lambda name: name.startswith("new-"))
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
            self.tell(f"a checkpoint could not be written to {self.folder} ({why}); the run goes on and {kept}")
            return False
        for old in found[: len(found) - KEPT + 1]:
            shutil.rmtree(self.folder / f"{old:08d}", ignore_errors=True)
        return True

    def load(self, device: torch.device | str = "cpu") -> dict[str, Any] | None:
        """The newest that is sound, or None; damaged ones are reported and set aside."""
        for number in reversed(self.numbers()):
            path = self.folder / f"{number:08d}"
            try:
                return self._read(path, device)
            except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
                self.tell(f"the checkpoint {path} is damaged ({error}); the one before it is used")
                shutil.rmtree(path, ignore_errors=True)
        return None

    def keep_last(self) -> None:
        """Leave only the newest one, when the run is finished."""
        for number in self.numbers()[:-1]:
            shutil.rmtree(self.folder / f"{number:08d}", ignore_errors=True)

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

    def _clear(self, chosen: Callable[[str], bool]) -> None:
        for path in self.folder.iterdir():
            if chosen(path.name):
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
    """Replace a file in one piece: whoever reads it sees the old content or the new, never half of either."""
    draft = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        write_whole(draft, data)
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    flush_folder(path.parent)


def flush_folder(path: Path) -> None:
    """Make a rename inside `path` last through a power cut, where the system can."""
    if os.name == "nt":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
