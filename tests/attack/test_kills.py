"""A process killed wherever it changes the disk, and at every hook: started again it ends as if it had not been.

Runs of every method, sweeps, the fetching and unpacking of data, and the saving of an anchor are killed before and
after every fsync, rename, removal and hook, and with what was not yet on the disk cut off. A run is then started again,
killed once more now and then, and must end with the same files bit for bit and none beside them.
``DRCL_ATTACK=20 python -m pytest tests/attack/test_kills.py`` kills twenty times as often.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from tests.attack import tally
from tests.attack.budget import cases
from tests.attack.kill_data import CASES
from tests.attack.kill_points import WAYS

from drcl import Anchor, AnchorError
from drcl.lab import methods
from drcl.lab.runs import digests
from drcl.lab.runs.config import RunConfig
from drcl.lab.runs.read import Run
from drcl.lab.runs.verify import verify

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="children are forked")
ROOT = Path(__file__).parents[2]
SEED = 13
SMALL = {"tasks": 2, "epochs": 2, "limit_per_class": 16, "batch": 8, "model.hidden": [12], "log_every": 3}
CHEAP = {"samples": 20}
CLOCK = ("seconds", "peak_bytes", "per_task_seconds")
TALLY: Counter[str] = Counter()
BY_METHOD: Counter[str] = Counter()


class Killer:
    """The process that forks."""

    def __init__(self, scratch: Path) -> None:
        command = [sys.executable, "-m", "tests.attack.kill_worker", str(scratch)]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
            "OMP_NUM_THREADS": "1",
        }
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, cwd=ROOT, env=environment, **pipes)

    def __call__(self, work: str, folder: Path, at: int | None = None, way: str = "before", **arguments: Any) -> Any:
        order = {"work": work, "folder": str(folder), "at": at, "way": way, "seed": at or 0, "arguments": arguments}
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def whole(self, work: str, folder: Path, **arguments: Any) -> Any:
        """The same without a kill."""
        answer = self(work, folder, **arguments)
        assert answer["code"] == 0, answer.get("error", answer)
        return answer

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture(scope="module")
def killer(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Killer]:
    found = Killer(tmp_path_factory.mktemp("killer") / "scratch")
    yield found
    found.close()
    tally.keep(
        "kills", request, **dict(TALLY), methods=len(BY_METHOD), fewest_of_a_method=min(BY_METHOD.values(), default=0)
    )


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: a disk takes its time for every fsync."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else tmp_path) as folder:
        yield Path(folder)


def content(folder: Path) -> dict[str, bytes]:
    """Every file below a folder but locks; of JSON what is not read off a clock."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if not path.is_file() or path.name.endswith(".lock") or path.name in ("environment.json", "notes.txt"):
            continue  # a note is what a run says about what it found
        found[name] = path.read_bytes()
        if path.suffix == ".json" and path.name in ("result.json", "cost.json"):
            found[name] = json.dumps(timeless(json.loads(found[name])), sort_keys=True).encode()
        if path.name == digests.FILE:  # of times as well: it must be right, not the same
            found[name] = sealed(path.parent)
        if "checkpoint" in path.relative_to(folder).parts:
            found[name] = b""  # it knows the time the run has taken
    return found


def sealed(folder: Path) -> bytes:
    """The files that have digests, and what is wrong with them."""
    try:
        named = sorted(name for name in digests.read(folder) if name != "notes.txt")
    except ValueError as damaged:
        return str(damaged).encode()
    return json.dumps([named, digests.check(folder)]).encode()


def timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: timeless(v) for k, v in value.items() if not k.endswith(CLOCK)}
    return value


def same(one: dict[str, bytes], other: dict[str, bytes]) -> str:
    """Empty, or the names of the files that tell two folders apart."""
    return ", ".join(sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name)))


def plan(rng: random.Random, names: list[str], count: int) -> list[tuple[int, str]]:
    """Where to kill: every place and way in a random order, as many as are wanted."""
    every = [(at, way) for at in range(len(names)) for way in WAYS if way != "torn" or names[at].startswith("fsync")]
    rng.shuffle(every)
    return every[:count]


@pytest.mark.parametrize("method", methods.names())
def test_a_killed_run_ends_bit_for_bit(method: str, killer: Killer, room: Path) -> None:
    rng = random.Random(f"{SEED} {method}")
    known = methods.get(method).__dataclass_fields__
    options = SMALL | {k: v for k, v in CHEAP.items() if k in known} | {"checkpoint_every": 3}
    config = room / "config.toml"
    config.write_text(RunConfig.make("digits-split", method, 3, options).to_toml())
    whole = room / "whole"
    whole.mkdir()
    places = killer.whole("run", whole, config=str(config), directory=str(whole))["points"]
    expected = content(whole)
    assert Run.read(whole).problems == ()
    for number, (at, way) in enumerate(plan(rng, places, cases(2))):
        cut = room / "cut"
        shutil.rmtree(cut, ignore_errors=True)
        cut.mkdir()
        case = f"{method}, killed {way} {places[at]} (place {at})"
        answer = killer("run", cut, at, way, config=str(config), directory=str(cut))
        assert answer["code"] == -9, (case, answer)
        TALLY["kills of runs"] += 1
        BY_METHOD[method] += 1
        if number % 3 == 2:  # and once more on the way
            again = killer("run", cut, rng.randrange(len(places)), way, config=str(config), directory=str(cut))
            TALLY["kills of runs"] += again["code"] == -9
            assert again["code"] in (0, -9), (case, again)
        if (cut / "config.toml").exists():  # a run can be read in any state, and a kill does not count as damage
            assert verify(Run.read(cut)).state in ("whole", "unfinished"), (case, verify(Run.read(cut)))
        killer.whole("run", cut, config=str(config), directory=str(cut))
        assert not same(expected, content(cut)), f"{case}: another {same(expected, content(cut))}"


@pytest.mark.parametrize("jobs", [0, 2])
def test_a_killed_sweep_loses_and_doubles_nothing(jobs: int, killer: Killer, room: Path) -> None:
    rng = random.Random(f"{SEED} sweep {jobs}")
    table = {"benchmarks": ["digits-split"], "methods": ["sgd", "ewc"], "seeds": 2}
    table |= {"options": {"tasks": 2, "epochs": 1, "limit_per_class": 8, "model": {"kind": "mlp", "hidden": [8]}}}
    file, whole = room / "sweep.toml", room / "whole"
    file.write_text(tomli_w.dumps(table))
    whole.mkdir()
    first = killer.whole("sweep", whole, file=str(file), out=str(whole), jobs=jobs)
    assert sorted(first["result"]["done"]) == sorted(first["result"]["planned"])
    assert len(first["result"]["planned"]) == 4
    expected = content(whole)
    for at, way in plan(rng, first["points"], cases(6)):
        cut = room / "cut"
        shutil.rmtree(cut, ignore_errors=True)
        cut.mkdir()
        case = f"sweep with {jobs} jobs, killed {way} {first['points'][at]} (place {at})"
        answer = killer("sweep", cut, at, way, file=str(file), out=str(cut), jobs=jobs)
        if jobs and answer["code"] == 0:  # processes do not come in the same order every time
            continue
        assert answer["code"] == -9, (case, answer)
        TALLY["kills of sweeps"] += 1
        before = {path.parent.name: path.stat().st_mtime_ns for path in cut.glob("*/result.json")}
        ended = killer.whole("sweep", cut, file=str(file), out=str(cut), jobs=jobs)["result"]
        assert not ended["failed"], case
        assert sorted(ended["there"]) == sorted(before), case  # what was finished is not run again
        assert sorted(ended["there"] + ended["done"]) == sorted(ended["planned"]), case
        assert all((cut / name / "result.json").stat().st_mtime_ns == then for name, then in before.items()), case
        assert not same(expected, content(cut)), f"{case}: another {same(expected, content(cut))}"


@pytest.mark.parametrize("kind", CASES)
def test_a_killed_fetch_leaves_nothing_half(kind: str, killer: Killer, room: Path) -> None:
    rng = random.Random(f"{SEED} {kind}")
    case, site = CASES[kind], room / "site"
    site.mkdir()
    case.build(site)

    def fresh(name: str) -> Path:
        root = room / name
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir()
        if case.by_hand is not None:
            shutil.copytree(site, root / case.by_hand, dirs_exist_ok=True)
        return root

    whole = fresh("whole")
    first = killer.whole("fetch", whole, kind=kind, root=str(whole), site=str(site))
    expected = content(whole)
    for at, way in plan(rng, first["points"], cases(10)):
        cut = fresh("cut")
        words = f"{kind}, killed {way} {first['points'][at]} (place {at})"
        answer = killer("fetch", cut, at, way, kind=kind, root=str(cut), site=str(site))
        assert answer["code"] == -9, (words, answer)
        TALLY["kills of fetches"] += 1
        found = killer("look", cut, kind=kind, root=str(cut))
        told = found["code"] == 3 and "drcl.lab.data.errors" in found["error"]
        assert told or found.get("result") == first["result"], f"{words}: half of it was taken for the whole: {found}"
        ended = killer.whole("fetch", cut, kind=kind, root=str(cut), site=str(site))
        assert ended["result"] == first["result"], words
        assert not same(expected, content(cut)), f"{words}: another {same(expected, content(cut))}"


def test_a_killed_save_leaves_the_old_anchor_or_the_new(killer: Killer, room: Path) -> None:
    rng = random.Random(f"{SEED} anchor")
    path = room / "anchor.safetensors"
    killer.whole("anchor", room, path=str(path), seed=1)
    old = path.read_bytes()
    places = killer.whole("anchor", room, path=str(path), seed=2)["points"]
    new = path.read_bytes()
    for at, way in plan(rng, places, cases(10)):
        path.write_bytes(old)
        assert killer("anchor", room, at, way, path=str(path), seed=2)["code"] == -9
        TALLY["kills of anchors"] += 1
        assert path.read_bytes() in (old, new), (places[at], way)
        Anchor.load(path)
    for part in room.glob("*.part"):  # its name is not that of an anchor, and half a file is refused
        try:
            Anchor.load(part)
        except AnchorError:
            continue
        assert part.read_bytes() in (old, new)
