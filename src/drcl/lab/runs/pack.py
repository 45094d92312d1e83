"""Many runs in one text file: what a study keeps of its run directories.

A pack is JSON lines. The first line names the format. Each further line is one run: its name, its unchanged text files,
and a digest of both. Checkpoints and weights are left out, and so is ``digests.json``, which lists them. Every command
that reads run directories also reads packs (``drcl.lab.runs.read.find``).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from drcl.lab.runs import digests
from drcl.lab.runs.checkpoint import replace_whole

SUFFIX = ".jsonl"
FORMAT = "drcl.runs/1"
KEPT = (".csv", ".json", ".toml")
_FIRST = json.dumps({"format": FORMAT})


@dataclass(frozen=True)
class Packed:
    """One run of a pack; `damage` says what is wrong with its line."""

    name: str
    files: dict[str, str]
    damage: str = ""

    def line(self) -> str:
        return json.dumps({"run": self.name, "digest": self._digest(), "files": self.files}, ensure_ascii=False)

    def write(self, directory: Path) -> Path:
        """The run's directory again, below `directory`, with digests of the files that a pack keeps."""
        made = directory / self.name
        made.mkdir(parents=True)
        seal = digests.Seal(made)
        for name, text in self.files.items():
            if name != digests.LAST:
                seal.write(name, text.encode())
        if digests.LAST in self.files:
            seal.close(self.files[digests.LAST].encode())
        return made

    def _digest(self) -> str:
        return digests.of_bytes(json.dumps([self.name, self.files], sort_keys=True).encode())

    @classmethod
    def parse(cls, line: str, number: int) -> Packed:
        """A line that cannot be trusted becomes a run that only says what is damaged."""
        lost = f"line {number} of the pack is damaged"
        try:
            content = json.loads(line)
            name, files, digest = content["run"], content["files"], content["digest"]
            plain = all(isinstance(text, str) and _plain(file) for file, text in files.items()) and _plain(name)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            return cls(f"line-{number}", {}, f"{lost} ({type(error).__name__})")
        if not plain:
            return cls(f"line-{number}", {}, f"{lost} (it has names that are not names of files)")
        packed = cls(name, files)
        if packed._digest() != digest:
            return cls(name, files, f"{lost} (its content does not match its digest)")
        return packed


def _plain(name: str) -> bool:
    return bool(name) and Path(name).name == name and "\0" not in name


def is_pack(path: Path) -> bool:
    if path.suffix != SUFFIX or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.readline(len(_FIRST) + 2).strip() == _FIRST.encode()


def read(path: Path) -> list[Packed]:
    """Every run of a pack, in its order."""
    lines = path.read_bytes().decode(errors="replace").split("\n")
    return [Packed.parse(line, number) for number, line in enumerate(lines[1:], 2) if line.strip()]


def of(path: Path) -> Packed:
    """One run, by its path: a directory, or a pack with the run's name behind it."""
    if is_pack(path.parent):
        return next(run for run in read(path.parent) if run.name == path.name)
    kept = [file for file in sorted(path.iterdir()) if file.is_file() and file.suffix in KEPT]
    files = {file.name: file.read_bytes().decode() for file in kept if file.name != digests.FILE}
    return Packed(path.resolve().name, files)


def write(path: Path, runs: Iterable[Packed]) -> None:
    """Write a pack. Two runs of the same name are refused, because a pack acts like one folder."""
    chosen = list(runs)
    names = [run.name for run in chosen]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two runs are named {name}; a pack holds one of each name: make two packs of them")
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_whole(path, ("\n".join([_FIRST, *(run.line() for run in chosen)]) + "\n").encode())
