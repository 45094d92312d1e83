"""The process in which damaged data files are read: with little memory, little time, and every outcome written down.

``python -m tests.attack.data_worker FOLDER SEED CASES TARGET FIRST`` reads CASES damaged forms of every miniature from
number TARGET on, of that one from case FIRST on, and prints a line of JSON for each. FOLDER/now always names the case
at work and what came before it, for whoever started this process and finds it dead.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import random
import resource
import shutil
import signal
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from tests.attack.data_miniatures import Target, everything
from tests.attack.data_mutations import mutated

from drcl.lab.data import DataError, DataSet

MEMORY = 96 << 20  # bytes beyond what the process has when it starts; the miniatures have at most 300 kilobytes
SECONDS = 20.0  # of computing, not of waiting
LONGEST = 1500  # characters of a sentence


class Hang(BaseException):
    """Not an Exception, so that no reader takes it for a damaged file."""


def fingerprint(data: DataSet) -> str:
    """The same for the same pictures, labels, groups and names."""
    digest = hashlib.sha256(repr((data.name, data.classes, data.synthetic)).encode("utf-8", "surrogatepass"))
    for split in (data.train, data.valid, data.test):
        for array in (split.images, split.labels, split.groups) if split is not None else ():
            if array is not None:
                digest.update(f"{array.dtype}{array.shape}".encode() + np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


class Attack:
    """One target's files, damaged one after the other and put right again."""

    def __init__(self, target: Target, root: Path, others: list[bytes], now: Path) -> None:
        self.target, self.root, self.others, self.now = target, root, others, now
        self.files = {path: path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}
        self.attacked = [path for path in self.files if fnmatch.fnmatch(path.name, target.attacked)]
        self.expected = fingerprint(target.read(root))
        self.restore(None)
        self.outcomes: Counter[str] = Counter()
        self.faults: list[str] = []

    def tally(self) -> dict[str, Any]:
        return {"outcomes": dict(self.outcomes), "faults": self.faults}

    def case(self, at: int, seed: int, number: int) -> None:
        rng = random.Random(f"{seed}|{self.target.name}|{number}")
        path = rng.choice(self.attacked)
        content, words, forged = mutated(self.files[path], self.others, rng)
        case = f"{self.target.name}, case {number}: {path.relative_to(self.root)}, {words}"
        self.now.write_text(json.dumps({"at": at, "number": number, "case": case} | self.tally()))
        path.write_bytes(content)
        outcome, detail = self.outcome()
        if outcome == "other" and not forged and self.target.sealed(path):
            outcome, detail = "SILENT", "read as other values in spite of its checksum"
        self.outcomes[outcome] += 1
        if outcome.isupper():
            self.faults.append(f"{outcome}: {case}: {detail}")
        self.restore(path)

    def outcome(self) -> tuple[str, str]:
        """Refused, read as the same or as other values; in capitals what must not happen."""
        try:
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            try:
                data = self.target.read(self.root)
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
        except Hang:
            return "HANG", f"more than {SECONDS:g} s of computing"
        except DataError as refused:
            cause: BaseException | None = refused
            while cause is not None:
                if isinstance(cause, MemoryError):
                    return "MEMORY", str(refused)
                cause = cause.__cause__
            said = str(refused)
            clear = len(said) <= LONGEST and "\n" not in said and " at 0x" not in said
            return ("refused", "") if clear else ("UNCLEAR", said[:3000])
        except MemoryError:
            return "MEMORY", "MemoryError"
        except Exception as foreign:
            return "FOREIGN", f"{type(foreign).__name__}: {foreign}"[:500]
        return ("same" if fingerprint(data) == self.expected else "other"), ""

    def restore(self, damaged: Path | None) -> None:
        """All files as they were, and none beside them."""
        known = set(self.files)
        for path in sorted(self.root.rglob("*"), reverse=True):
            if path not in known and (not path.is_dir() or not any(path.iterdir())):
                path.rmdir() if path.is_dir() else path.unlink()
        if damaged is not None:
            damaged.write_bytes(self.files[damaged])


def give_up(*_: Any) -> None:
    raise Hang


def limit_memory() -> None:
    """Bound what this process may ask for from now on."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    bound = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (bound, resource.RLIM_INFINITY))


def main(folder: Path, seed: int, cases: int, target: int, first: int) -> None:
    """All targets from number ``target`` on, the first of them from case ``first`` on; one line of JSON each."""
    warnings.simplefilter("ignore")  # Pillow's about broken metadata
    signal.signal(signal.SIGPROF, give_up)
    targets = everything()
    others: list[bytes] = []
    for i, each in enumerate(targets):
        root = folder / str(i)
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)
        each.build(root)
        others += [path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()][:3]
    for i in range(target, len(targets)):
        attack = Attack(targets[i], folder / str(i), [each for each in others if each], folder / "now")
        limit_memory()
        for number in range(first if i == target else 0, cases):
            attack.case(i, seed, number)
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        print(json.dumps({"target": targets[i].name} | attack.tally()), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *(int(value) for value in sys.argv[2:6]))
