"""Damaged and forged data files, thousands of them: each is refused in a sentence or read, and nothing else happens.

A miniature of every data set and format is damaged (bits, bytes, sizes, headers, order, length) or forged (another
content under right checksums) and read in a process with little memory and time. What may happen:

- refused: with our ``DataError``, in one line.
- same: the damage lies where nothing is read, or a kept file was noticed to be damaged and made again.
- other: read as other values. Allowed where no checksum can know: in IDX, CIFAR, .npy, .gnt, JSON and text files, in
  BMP, JPEG, WebP, GIF, TIFF and PPM pictures, in a plain tar file, and in anything that was forged. There
  ``drcl data verify`` compares the SHA-256 that was noted when the data were fetched. In gzip, zip, npz, PNG, bzip2 and
  xz files, in kept arrays and in files with a noted sum it is a fault.

A foreign traceback, more memory than the files can need, a computation without end, a message of many lines and a dead
process are faults. ``DRCL_ATTACK=100 python -m pytest tests/attack/test_data_files.py`` tries a hundred times as many.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.attack.budget import cases
from tests.attack.tally import keep

from drcl.lab.data import DataError
from drcl.lab.data.checks import sha256
from drcl.lab.data.decoding import decode
from drcl.lab.data.files import read_bytes, read_json, read_lines
from drcl.lab.data.formats.arrays import read_npz
from drcl.lab.data.formats.gnt import read_gnt
from drcl.lab.data.formats.idx import read_idx
from drcl.lab.data.formats.leaf import read_leaf
from drcl.lab.data.formats.npy import map_npy, read_npy
from drcl.lab.data.unpack import is_archive, unpack

ROOT = Path(__file__).parents[2]
SEED = 2024
PER_TARGET = 60
PATIENCE = 300.0  # seconds without a new case; one may compute for 20
LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="bounds on memory are Linux's")

FOUND: dict[str, Any] = {"generated": 0}


@pytest.fixture(scope="module", autouse=True)
def figures(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "outcomes" in FOUND:
        keep("data-files", request, **FOUND)


class Workers:
    """One process after the other until all cases are tried; one that dies is a fault, and the next goes on."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder, self.count = folder, count
        self.outcomes: dict[str, Counter[str]] = {}
        self.faults: list[str] = []
        self.last = ""

    def run(self) -> None:
        at = first = 0
        while not self._worked(at, first):
            now = json.loads((self.folder / "now").read_text())
            name = now["case"].split(", case")[0]
            self._add({"target": name, "outcomes": Counter(now["outcomes"]) + Counter(DEAD=1), "faults": now["faults"]})
            self.faults.append(f"DEAD: {now['case']}")
            at, first = now["at"], now["number"] + 1

    def _worked(self, at: int, first: int) -> bool:
        command = [sys.executable, "-m", "tests.attack.data_worker", self.folder, SEED, self.count, at, first]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
            "OMP_NUM_THREADS": "1",
            "MALLOC_ARENA_MAX": "1",  # each thread would reserve as much as the whole bound
        }
        said, told = self.folder / "said", self.folder / "told"
        with said.open("w") as errors, told.open("w") as lines:
            process = subprocess.Popen(list(map(str, command)), cwd=ROOT, env=environment, stdout=lines, stderr=errors)
            self._watch(process)
        for line in told.read_text().splitlines():
            self._add(json.loads(line))
        if process.returncode == 0:
            return True
        now = self.folder / "now"
        if not now.exists() or now.read_text() == self.last:
            raise RuntimeError(f"the worker did not get to work: {said.read_text()[-3000:]}")
        self.last = now.read_text()
        return False

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        """Wait for the process, and end it when it stops going on."""
        seen, since = "", time.monotonic()
        while process.poll() is None:
            time.sleep(0.2)
            now = (self.folder / "now").read_text() if (self.folder / "now").exists() else ""
            if now != seen:
                seen, since = now, time.monotonic()
            elif time.monotonic() - since > PATIENCE:
                process.kill()

    def _add(self, line: dict[str, Any]) -> None:
        self.outcomes.setdefault(line["target"], Counter()).update(line["outcomes"])
        self.faults += line["faults"]


def summary(outcomes: dict[str, Counter[str]]) -> str:
    """A line a target and one for all, as docs/reliability.md quotes it."""
    total = sum(outcomes.values(), Counter())
    lines = []
    for name, counts in (*outcomes.items(), ("all", total)):
        wrong = sum(count for outcome, count in counts.items() if outcome.isupper())
        told = (
            f"{counts['refused']:>7,} refused {counts['same']:>7,} same {counts['other']:>7,} other {wrong:>5,} faults"
        )
        lines.append(f"{name:<18} {sum(counts.values()):>8,} files {told}")
    return "\n".join(lines)


@LINUX
def test_damaged_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workers = Workers(tmp_path, cases(PER_TARGET))
    workers.run()
    with capsys.disabled():
        print(f"\ndamaged and forged data files, seed {SEED}:\n{summary(workers.outcomes)}")
    assert not workers.faults, f"{len(workers.faults)} faults, the first:\n" + "\n".join(workers.faults[:20])
    assert all(sum(counts.values()) == workers.count for counts in workers.outcomes.values())
    # An attack that never got past the first bytes would be none.
    total = sum(workers.outcomes.values(), Counter())
    FOUND.update(outcomes=dict(total), damaged=sum(total.values()))
    assert total["refused"] > total["other"] > 0


READERS = {
    "idx": lambda path: read_idx(path, 3),
    "gnt": lambda path: list(read_gnt(path)),
    "npz": read_npz,
    "npy": read_npy,
    "npy, some rows": lambda path: read_npy(path, 2),
    "npy, mapped": map_npy,
    "leaf": lambda path: read_leaf([path]),
    "lines": read_lines,
    "JSON": lambda path: read_json(path, 1 << 20),
    "bytes": read_bytes,
    "picture": lambda path: decode(path, 3, 8, "crop"),
    "archive": lambda path: (is_archive(path), unpack(path, path.parent / "out")),
    "sum": lambda path: sha256(path, unzip=True),
}
STARTS = {
    "idx": b"\0\0\x08\x03",
    "gnt": b"\x1a\0\0\0\xb0\xa1\x04\0\x04\0",
    "npz": b"PK\x03\x04",
    "npy": b"\x93NUMPY\x01\0v\0{'descr': '|u1', ",
    "npy, some rows": b"\x93NUMPY\x02\0",
    "npy, mapped": b"\x93NUMPY\x01\0v\0{'descr': '|u1', 'fortran_order': False, 'shape': (",
    "leaf": b'{"users": ["a"], "user_data": {"a": ',
    "JSON": b"[",
    "bytes": b"\x1f\x8b\x08\0",
    "picture": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
    "archive": b"x".ljust(257, b"\0") + b"ustar",
    "sum": b"\x1f\x8b\x08\0",
}
PICTURES = (b"GIF89a", b"BM", b"II*\0", b"MM\0*", b"\xff\xd8\xff", b"RIFF\0\0\0\0WEBPVP8 ", b"P6 9 9 255\n", b"P1 9 9 ")
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("axy"), inner, max_size=3),
    max_leaves=12,
)


@pytest.mark.parametrize("name", READERS)
def test_any_bytes(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Bytes that hypothesis makes up, behind a right beginning or none."""
    starts = [b"", STARTS.get(name, b""), *(PICTURES if name == "picture" else ())]
    tally: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"

        @settings(
            max_examples=cases(40),
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(st.sampled_from(starts), st.binary(max_size=600))
        def attack(start: bytes, rest: bytes) -> None:
            path.write_bytes(start + rest)
            tally[attempt(name, path)] += 1

        attack()
    FOUND["generated"] += sum(tally.values())
    with capsys.disabled():
        print(f"\n{name}: {sum(tally.values()):,} files of any bytes, {tally['refused']:,} refused", end="")


def test_any_json(capsys: pytest.CaptureFixture[str]) -> None:
    """JSON of any shape where LEAF's is expected."""
    tally: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"

        @settings(max_examples=cases(150), deadline=None, derandomize=True, database=None)
        @given(VALUES, VALUES, VALUES)
        def attack(users: Any, data: Any, counts: Any) -> None:
            path.write_text(json.dumps({"users": users, "user_data": data, "num_samples": counts}))
            tally[attempt("leaf", path)] += 1

        attack()
    FOUND["generated"] += sum(tally.values())
    with capsys.disabled():
        print(f"\nJSON of any shape: {sum(tally.values()):,} files, {tally['refused']:,} refused", end="")


def attempt(name: str, path: Path) -> str:
    """Read, or refused in one line; anything else is raised."""
    said, found = "", None
    try:
        found = READERS[name](path)
    except DataError as refused:
        said = str(refused)
    assert "\n" not in said
    assert len(said) < 1500
    if isinstance(found, np.ndarray):
        assert found.nbytes <= path.stat().st_size
    return "refused" if said else "read"
