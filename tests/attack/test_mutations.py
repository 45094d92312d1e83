"""Every file of a run, a checkpoint, a sweep and an anchor, damaged: what is read is right, or it is told.

A file is damaged in one way and read by the commands and calls that read it. What may happen:

- refused: with a sentence.
- recovered: the run was run again, or went on, and ended with the same bits as ever.
- told: it is listed as broken, or said to be damaged, and its numbers are not used.
- same: the damage changed nothing that is read.

A number that is another than before without a word, and an exception of Python or of a library, are faults.
``DRCL_ATTACK=10 python -m pytest tests/attack/test_mutations.py`` tries ten times as many.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch
from tests.attack import run_mutations, tally
from tests.attack.budget import cases
from tests.attack.test_kills import content, same
from torch import nn
from typer.testing import CliRunner

from drcl import DRCL, Anchor, Fisher, Kronecker
from drcl.anchor import digest
from drcl.lab.cli.app import app
from drcl.lab.runs.config import RunConfig
from drcl.lab.runs.execute import execute
from drcl.lab.runs.write import Records
from drcl.lab.sweeps import sweep, workers

SEED = 7
SMALL = {"tasks": 2, "epochs": 1, "limit_per_class": 8, "batch": 8, "model.hidden": [6], "log_every": 2}
TALLY: dict[str, Counter[str]] = {}


class Fault(AssertionError):
    """What must not happen."""


class Cut(BaseException):
    """What a kill is made of here."""


@pytest.fixture(scope="module", autouse=True)
def figures(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    tally.keep("mutations", request, **{name: dict(found) for name, found in TALLY.items()})


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    memory = Path("/dev/shm")
    place = memory if os.access(memory, os.W_OK) else tmp_path_factory.mktemp("room")
    with tempfile.TemporaryDirectory(dir=place) as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("DRCL_DEBUG", "1")  # commands let every exception through
        patch.setenv("COLUMNS", "200")
        yield Path(folder)


def command(*arguments: object) -> tuple[str, str]:
    """What a command says, and why it refused if it did."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = CliRunner().invoke(app, [str(each) for each in arguments])
    error = result.exception
    if error is None or isinstance(error, SystemExit):
        return result.output, "said on the way out" if result.exit_code else ""
    sentence = str(error)
    if not type(error).__module__.startswith("drcl") or not 20 < len(sentence) < 2000:
        raise Fault(f"drcl {arguments[0]}: {type(error).__name__}: {sentence[:500]}") from error
    return result.output, sentence


def config(method: str, seed: int) -> RunConfig:
    more = {"samples": 8} if method in ("ewc", "drcl") else {}
    return RunConfig.make("digits-split", method, seed, SMALL | more | {"checkpoint_every": 1})


def finished(method: str, seed: int, place: Path) -> Path:
    execute(config(method, seed), place)
    return place


def unfinished(method: str, seed: int, place: Path) -> Path:
    """Cut in the second task, with two checkpoints and rows behind them."""
    saved, save = 0, Records.save

    def counted(self: Records, state: Callable[[], dict[str, Any]]) -> None:
        nonlocal saved
        save(self, state)
        saved += 1
        if saved == 3:
            raise Cut

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Records, "save", counted)
        with pytest.raises(Cut):
            execute(config(method, seed), place)
    return place


def files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != ".lock"]


class Attack:
    """A folder damaged again and again, and put right in between."""

    def __init__(self, name: str, pristine: Path, others: list[Path], seed: int) -> None:
        self.name, self.pristine, self.others = name, pristine, others
        self.rng = random.Random(f"{SEED} {name} {seed}")
        self.attacked = [path.relative_to(pristine) for path in files(pristine)]
        self.work = pristine.with_name(f"{pristine.name}-damaged")
        self.outcomes = TALLY.setdefault(name, Counter())

    def cases(self, count: int) -> Iterator[tuple[str, Path]]:
        for number in range(count):
            shutil.rmtree(self.work, ignore_errors=True)
            shutil.copytree(self.pristine, self.work)
            file = self.attacked[number % len(self.attacked)]  # every one of them in turn
            others = [other / file for other in self.others if (other / file).is_file()]
            way = run_mutations.mutate(self.work / file, others, self.rng)
            yield f"{self.name}, case {number}: {file}, {way}", self.work

    def judge(self, count: int, outcome: Callable[[str, Path], str]) -> None:
        """Try them all, and only then complain."""
        faults = []
        for case, work in self.cases(count):
            try:
                self.outcomes[outcome(case, work)] += 1
            except Fault as fault:
                self.outcomes["SILENT OR FOREIGN"] += 1
                faults.append(str(fault))
        assert not faults, f"{len(faults)} faults, the first:\n" + "\n".join(faults[:10])


def numbers(shown: str) -> set[str]:
    """What a table measures, a text for each row that has any."""
    rows = [line.split(",", 5)[5] for line in shown.splitlines()[1:]]
    return {row for row in rows if set(row) - set("0,")}


def looked_at(case: str, folder: Path, right: str, report: bool) -> str:
    """By the commands that only read: told or same."""
    verdict, damaged = command("verify", folder)
    shown, _ = command("table", folder, "--format", "csv")
    if report:
        command("report", folder, "--output", folder.with_name("page.html"))
    lost = bool(numbers(right)) and " unfinished" in verdict  # its result is gone
    told = damaged or lost or "no digests stored" in verdict
    # Of several runs some may be left out: then the mean is another, and the table says of how many it is.
    left_out = told and "sweep" in case
    if not numbers(shown) <= numbers(right) and not left_out:
        raise Fault(f"{case}: table says {shown!r} in place of {right!r}, and verify {verdict!r}")
    if not told and numbers(shown) != numbers(right):
        raise Fault(f"{case}: numbers are left out without a word of verify: {verdict!r}")
    return "told" if told else "same"


@pytest.mark.parametrize("method", ["sgd", "ewc", "drcl"])
@pytest.mark.parametrize("state", ["finished", "unfinished"])
def test_a_damaged_run(method: str, state: str, room: Path) -> None:
    make = {"finished": finished, "unfinished": unfinished}[state]
    home = room / f"{state}-{method}"
    pristine = make(method, 1, home / "run")
    others = [make(method, 2, home / "seed"), make("ewc" if method != "ewc" else "si", 1, home / "method")]
    expected = content(finished(method, 1, home / "expected"))
    settings = home / "config.toml"
    settings.write_text(config(method, 1).to_toml())
    right = command("table", pristine, "--format", "csv")[0]
    attack = Attack(f"{state} run", pristine, others, seed=len(method))

    def outcome(case: str, work: Path) -> str:
        seen = looked_at(case, work, right, report="case 0:" in case or "00:" in case)
        before = (work / "result.json").stat().st_mtime_ns if (work / "result.json").exists() else 0
        _, refused = command("run", "--config", settings, "--out", work.parent, "--name", work.name)
        if refused:
            return "refused"
        differs = same(expected, content(work))
        again = (work / "result.json").stat().st_mtime_ns != before
        if not again and seen == "told" and spare(differs):
            return "told"
        if differs:
            raise Fault(f"{case}: it ends with another {differs}")
        return "recovered" if again else seen

    attack.judge(cases(15), outcome)


def spare(names: str) -> bool:
    """Whether a finished run, which is told to be damaged, does not need these files any more."""
    return all("checkpoint" in name or "digests" in name for name in names.split(", "))


def test_a_damaged_sweep(room: Path) -> None:
    home = room / "sweep"
    home.mkdir()
    table = {"benchmarks": ["digits-split"], "methods": ["sgd"], "seeds": 2}
    table |= {"options": {"tasks": 2, "epochs": 1, "limit_per_class": 8, "model": {"kind": "mlp", "hidden": [6]}}}
    (home / "sweep.toml").write_text(tomli_w.dumps(table))
    pristine = home / "runs"
    todo = sweep.jobs(sweep.read(home / "sweep.toml"), pristine)
    assert len(sweep.run(todo, workers.here).done) == 2
    expected, right = content(pristine), command("table", pristine, "--format", "csv")[0]
    attack = Attack("sweep", pristine, [], seed=0)

    def outcome(case: str, work: Path) -> str:
        seen = looked_at(case, work, right, report=False)
        ended = sweep.run(sweep.jobs(sweep.read(home / "sweep.toml"), work), workers.here)
        if len(ended.done) + len(ended.there) + len(ended.failed) != 2:
            raise Fault(f"{case}: a run of the sweep is not accounted for")
        if ended.failed:
            if len(ended.failed[0][1]) <= 20:
                raise Fault(f"{case}: {ended.failed[0][1]}")
            return "refused"
        differs = same(expected, content(work))
        if differs and not (seen == "told" and spare(differs)):
            raise Fault(f"{case}: it ends with another {differs}")
        return "recovered" if ended.done else seen

    attack.judge(cases(20), outcome)


def network(norm: bool) -> nn.Module:
    layers = [nn.Linear(4, 6), *([nn.BatchNorm1d(6)] if norm else []), nn.ReLU(), nn.Linear(6, 3)]
    return nn.Sequential(*layers)


def anchored(seed: int, norm: bool, estimator: Any) -> tuple[nn.Module, DRCL]:
    torch.manual_seed(seed)
    model = network(norm)
    head = list(model[-1].named_parameters(f"{len(model) - 1}"))  # type: ignore[index,arg-type,union-attr]
    trunk = [(n, p) for n, p in model.named_parameters() if n not in dict(head)]
    optimizer = DRCL([{"params": trunk}, {"params": head, "free": True}], lr=0.1)
    batches = [(torch.randn(8, 4), torch.arange(8) % 3)]
    optimizer.consolidate(model, batches, estimator)
    return model, optimizer


@pytest.mark.parametrize(
    ("norm", "estimator"),
    [(False, Fisher(samples=8)), (True, Fisher(samples=8)), (False, Kronecker(samples=8))],
    ids=["weights", "buffers", "directions"],
)
def test_a_damaged_anchor(norm: bool, estimator: Any, room: Path) -> None:
    kind = f"anchor-{norm}-{type(estimator).__name__}"
    for place, seed in (("one", 1), ("other", 2)):
        (room / kind / place).mkdir(parents=True)
        anchor = anchored(seed, norm, estimator)[1].anchor
        assert isinstance(anchor, Anchor)
        anchor.save(room / kind / place / "anchor.safetensors")
    expected, other = (summed(Anchor.load(room / kind / place / "anchor.safetensors")) for place in ("one", "other"))
    attack = Attack("anchor", room / kind / "one", [room / kind / "other"], seed=norm)

    def outcome(case: str, work: Path) -> str:
        model, optimizer = anchored(3, norm, estimator)
        try:
            found = Anchor.load(work / "anchor.safetensors", model)
            optimizer.protect(model, found)
        except (ValueError, FileNotFoundError) as refused:
            if not 20 < len(str(refused)) < 2000 or isinstance(refused, UnicodeError):
                raise Fault(f"{case}: {refused!r}") from refused
            return "refused"
        except Exception as foreign:
            raise Fault(f"{case}: {foreign!r}") from foreign
        if summed(found) not in (expected, other):
            raise Fault(f"{case}: other values")
        return "same" if summed(found) == expected else "another sound anchor in its place"

    attack.judge(cases(300), outcome)


def summed(anchor: Anchor) -> str:
    tensors = {
        f"{k}/{n}": t for k in ("weights", "importance", "free", "buffers") for n, t in getattr(anchor, k).items()
    }
    tensors |= {f"{n}/{k}": t for n, basis in anchor.bases.items() for k, t in basis.tensors().items()}
    return digest(tensors, {"provenance": repr(anchor.provenance), "bases": repr([*anchor.bases])})
