"""Digests of a finished run's files, in ``digests.json``: one changed bit in any of them is noticed.

They are computed from what was written, not from what the disk returns. The file is written before ``result.json``, so
every finished run has it. A checkpoint has its own digest and is not listed here. Runs of earlier versions have no
``digests.json``. If you copy a run without its large files, remove ``digests.json`` from the copy.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from drcl.lab.runs.checkpoint import replace_whole

FILE = "digests.json"
LAST = "result.json"  # written after the digests
FORMAT = "drcl.digests/1"
_PIECE = 1 << 20


def of_bytes(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def of_file(path: Path, length: int | None = None) -> str:
    """The digest of a file, or of its first `length` bytes."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE if length is None else min(_PIECE, length)):
            found.update(piece)
            length = None if length is None else length - len(piece)
    return found.hexdigest()


class Seal:
    """Writes the files of a run and remembers what was written; `close` writes the digests."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.digests: dict[str, str] = {}

    def write(self, name: str, data: bytes) -> None:
        replace_whole(self.directory / name, data)
        self.digests[name] = of_bytes(data)

    def close(self, result: bytes) -> None:
        """Write the digests and then ``result.json``, which says that all is there."""
        self.digests[LAST] = of_bytes(result)
        replace_whole(self.directory / FILE, _rendered(self.digests))
        replace_whole(self.directory / LAST, result)


def stored(directory: Path) -> bool:
    return (directory / FILE).exists()


def remove(directory: Path) -> None:
    """Prepare to change the files of a run. The result is removed first, so a kill leaves an unfinished run."""
    (directory / LAST).unlink(missing_ok=True)
    (directory / FILE).unlink(missing_ok=True)


def read(directory: Path) -> dict[str, str]:
    """The digests by name of file; ValueError where they cannot be trusted."""
    raw = (directory / FILE).read_bytes()
    try:
        content = json.loads(raw)
        files, named = content["files"], content["format"]
        plain = all(isinstance(v, str) and Path(k).name == k for k, v in files.items())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"it cannot be read: {type(error).__name__}") from None
    if named != FORMAT:
        raise ValueError(f"its format is {named!r}; this version of drcl knows {FORMAT!r}")
    if not plain or raw != _rendered(files):
        raise ValueError("its content does not match its own digest")
    return dict(files)


def check(directory: Path) -> list[str]:
    """What is wrong with the files of a run, one sentence each; empty if all is well or no digests are stored."""
    if not stored(directory):
        return []
    try:
        known = read(directory)
    except (OSError, ValueError) as error:
        return [f"{FILE} is damaged ({error})"]
    found = []
    for name, digest in known.items():
        path = directory / name
        try:
            if not path.exists():
                if name != LAST:  # without it the run is not finished: it was killed just before
                    found.append(f"{name} is missing")
            elif not path.is_file():
                found.append(f"{name} is not a file")
            elif of_file(path) != digest:
                found.append(f"{name} is damaged (its content does not match its digest)")
        except OSError as error:
            found.append(f"{name} cannot be read ({error.strerror or error})")
    return found


def add(directory: Path, name: str, data: bytes) -> None:
    """Write one more file of a run that may already have its digests. At no time does a listed file differ from its
    digest."""
    try:
        known = read(directory) if stored(directory) else None
    except ValueError:
        known = None  # damaged: the reader of the run reports it, nothing is repaired here
    if known is None:
        replace_whole(directory / name, data)
        return
    if known.pop(name, None) is not None:
        replace_whole(directory / FILE, _rendered(known))
    replace_whole(directory / name, data)
    replace_whole(directory / FILE, _rendered({**known, name: of_bytes(data)}))


def _rendered(files: dict[str, str]) -> bytes:
    body = json.dumps(files, sort_keys=True)
    content = {"format": FORMAT, "digest": of_bytes(body.encode()), "files": dict(sorted(files.items()))}
    return (json.dumps(content, indent=2) + "\n").encode()
